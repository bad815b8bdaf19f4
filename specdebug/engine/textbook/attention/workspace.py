"""Workspaces give planners memory for metadata: fresh for an eager batch, static for a graph."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specdebug.engine.memory.arena import Arena
from specdebug.engine.memory.fill import Scratch


class Workspace(Protocol):
    """Hands out metadata buffers by name."""

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Give a buffer of ``shape``, or the larger static one declared under ``name``; content undefined."""


class EagerWorkspace:
    """Gives fresh memory of exactly the asked shape."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._scratch.empty(shape, dtype)


class ArenaWorkspace:
    """Gives the static buffers of one runner, the same at every replay."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._arena[name]
