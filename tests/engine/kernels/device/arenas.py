"""Memory with guards, for a reference on the CPU and its twin on the device under test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from specdebug.engine.kernels.pointer import flat_storage
from specdebug.engine.memory.arena import Arena, ArenaLayout, FillPolicy


def twin_arenas(device: torch.device, **buffers: tuple[tuple[int, ...], torch.dtype]) -> tuple[Arena, Arena]:
    """Two arenas of these buffers in this order, on the CPU and on ``device``, both full of the same garbage."""
    layout = ArenaLayout(guards=True)
    for name, (shape, dtype) in buffers.items():
        layout.add(name, shape, dtype)
    here, there = (layout.build(FillPolicy("garbage", 7), place) for place in (torch.device("cpu"), device))
    return here, there


def memory(view: Tensor) -> Tensor:
    """Every byte of the allocation behind ``view``, guards included."""
    return flat_storage(view).view(torch.uint8).cpu()


@contextmanager
def guarded_outputs() -> Iterator[None]:
    """Tensors made meanwhile by ``torch.empty`` hold garbage and lie between guards, which must be whole at the end."""
    arenas: list[Arena] = []
    plain = torch.empty

    def guarded(shape: int | tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        layout = ArenaLayout(guards=True)
        layout.add("before", (1,), torch.uint8)
        layout.add("output", (shape,) if isinstance(shape, int) else tuple(shape), dtype)
        with mock.patch.object(torch, "empty", plain):
            arenas.append(layout.build(FillPolicy("garbage", len(arenas)), device))
        return arenas[-1]["output"]

    with mock.patch.object(torch, "empty", guarded):
        yield
    assert [violation for arena in arenas for violation in arena.check_guards()] == []
