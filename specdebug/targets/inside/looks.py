"""Looks: what an engine's process remembers of a request until that ends, then left in a file for the harness.

The oracles of our own engine look into its memory while it runs. Another engine lives in another process, so what they
would look at is copied as it comes by, request by request: what a request stores for its next draft, each tree with
what the target said of it, and at the end the keys and values. The file is complete when it appears.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdebug.targets.inside.words import say

LOG_VARIABLE = "SPECDEBUG_SERVER_LOG"
"""Names the log of the server; looks lie in a folder beside it."""

Event = dict[str, Any]
"""``what`` is ``prefilled`` or ``verified``; the rest are tensors and numbers for ``http/request_looks.py``."""


def looks_folder(log: str) -> Path:
    """The folder of the looks of a server that has this log."""
    return Path(f"{log}.looks")


def kept(tensor: Tensor) -> Tensor:
    """A copy on the host, which is written once."""
    return tensor.detach().to("cpu", copy=True)


class Looks:
    """Collects events by request, and writes the file of one that has ended into ``folder``.

    A disk that is full ends the writing and not the engine; a line of the log says so.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events: dict[str, list[Event]] = {}
        self._failed = False

    def add(self, rid: str, event: Event) -> None:
        """Remember an event. Of prefills right after each other the last counts: the others are its chunks."""
        if self._failed:
            return
        events = self._events.setdefault(rid, [])
        if events and events[-1]["what"] == event["what"] == "prefilled":
            events.pop()
        events.append(event)

    def extend(self, rid: str, more: Mapping[str, Any]) -> None:
        """Add to the last event of a request."""
        if events := self._events.get(rid):
            events[-1].update(more)

    def end(self, rid: str, kv: Mapping[str, Tensor]) -> None:
        """Write the file of a request. ``kv``: by pool and kind, [layers, positions, heads, head_dim]."""
        events = self._events.pop(rid, [])
        if self._failed:
            return
        path = self._folder / f"{rid}.look"
        try:
            self._folder.mkdir(exist_ok=True)
            torch.save({"events": events, "kv": dict(kv)}, f"{path}.part")
            os.replace(f"{path}.part", path)
        except (OSError, RuntimeError) as error:  # torch raises either
            self._failed = True
            self._events.clear()
            say(f"looking ends, {path}: {' '.join(str(error).split())}")

    def forget(self, rid: str) -> None:
        """Forget a request that was aborted."""
        self._events.pop(rid, None)
