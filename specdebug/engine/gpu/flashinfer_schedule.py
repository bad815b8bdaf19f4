"""What FlashInfer's schedulers are given: a batch as the host knows it, and memory for the schedules that they make."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from specdebug.engine.textbook.attention.planner import RaggedMetadata


@dataclass(frozen=True)
class Schedule:
    """A batch for FlashInfer's planner: int32 CPU tensors [B + 1], [B + 1] and [B], and its query rows."""

    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_lens: Tensor
    rows: int

    @property
    def batch(self) -> int:
        return self.kv_lens.numel()


def schedule_of(metadata: RaggedMetadata) -> Schedule:
    """The schedule's input for a batch."""
    kv_lens = _lengths(metadata.kv_lens_host, metadata.kv_indptr)
    if metadata.q_len is None:
        q_lens = _lengths(metadata.q_lens_host, metadata.qo_indptr)
    else:
        q_lens = (metadata.q_len,) * len(kv_lens)
    return Schedule(_indptr(q_lens), _indptr(kv_lens), torch.tensor(kv_lens, dtype=torch.int32), sum(q_lens))


def _lengths(known: tuple[int, ...] | None, indptr: Tensor) -> tuple[int, ...]:
    """The lengths that the host knows, else those read off the device, which is waited for."""
    return tuple(indptr.diff().tolist()) if known is None else known


def _indptr(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


class ScheduleSpace:
    """The memory of a schedule on the device, and two host buffers for its asynchronous copy there.

    The buffers take turns: the copy of the last schedule may still wait for its place in the stream.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.on_device = torch.empty(size, dtype=torch.uint8, device=device)
        asynchronous = device.type == "cuda"
        self._staging = [torch.empty(size, dtype=torch.uint8, pin_memory=asynchronous) for _ in range(2)]
        events: Any = torch.cuda.Event
        self._copied = [events() for _ in range(2)] if asynchronous else None
        self._turn = 0

    @contextmanager
    def staging(self) -> Iterator[Tensor]:
        """Give a free host buffer; its copy must be enqueued when the block ends."""
        self._turn ^= 1
        copied = None if self._copied is None else self._copied[self._turn]
        if copied is not None and not copied.query():
            copied.synchronize()
        yield self._staging[self._turn]
        if copied is not None:
            copied.record()


class ScheduleSpaces:
    """Spaces of any size on one device, of which eager batches leave theirs to the next."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spare: dict[int, list[ScheduleSpace]] = {}

    def lend(self, attention: object, size: int, *, graph: bool) -> ScheduleSpace:
        """Lend ``size`` bytes to an attention for as long as it lives; under a ``graph`` no other ever has them."""
        spare = self._spare.setdefault(size, [])
        space = spare.pop() if spare and not graph else ScheduleSpace(size, self._device)
        if not graph:  # the next batch may have it: kernels that are launched already come first in the stream
            weakref.finalize(attention, spare.append, space).atexit = False
        return space
