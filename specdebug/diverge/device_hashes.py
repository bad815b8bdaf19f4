"""Hashes of rows that lie on a device: equal rows have equal hashes, others do not but for one in 2**64.

The device adds up **groups** of rows, the host the sums of a **segment** (``sums.py``). Hashes of the host
(``fingerprint.py``) and of a device are not comparable.

There is no wait: at the end of a step its sums are sent to pinned memory of the host, which reads them once they are
there. So of a device that is lost all is known but the last step or two.

A graph adds up what passes in it to memory of its own, since the owners of the rows are known only when it is replayed:
a group is a row, or all rows. After a replay that memory is copied to the step's other sums.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdebug.async_probe import SiteCall
from specdebug.diverge.fingerprint import rows_of
from specdebug.diverge.sums import keys_and_weights

BLOCK = 4096
"""Sums in a piece of memory."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_compiled: dict[tuple[object, ...], Any] = {}


class Groups(NamedTuple):
    """The groups in which a call's rows are added up: ``number`` of them, of ``unit`` rows each."""

    number: int
    unit: int

    @classmethod
    def of(cls, call: SiteCall, *, apart: bool) -> Groups:
        """Each row of what a call hands over, or all of them."""
        tensor = call.tensor
        rows = call.at.numel() if call.at is not None else tensor.shape[0] if tensor.dim() else 1
        return cls(rows, 1) if apart else cls(1, rows)


class Block:
    """A piece of memory for sums, zeros at first, that is filled from the front."""

    def __init__(self, device: torch.device, size: int) -> None:
        self.memory = torch.zeros(size, dtype=torch.int64, device=device)
        self.used = 0

    def room(self, count: int) -> bool:
        """True if that many more fit."""
        return self.used + count <= self.memory.numel()

    def add(self, call: SiteCall, groups: Groups) -> None:
        """Enqueue the sums of a call's groups."""
        if call.tensor.is_cuda:
            _launch(call, groups, self.memory, self.used)
        else:
            self.memory[self.used : self.used + groups.number] += reference(call, groups)
        self.used += groups.number


class CapturedSums:
    """The sums that a graph takes at each replay."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def add(self, call: SiteCall, groups: Groups) -> None:
        """Make the sums of a call's groups a part of the graph that is being captured."""
        if not self.blocks or not self.blocks[-1].room(groups.number):
            # The zeros are a part of it, too, so they are written at each replay.
            self.blocks.append(Block(call.tensor.device, max(BLOCK, groups.number)))
        self.blocks[-1].add(call, groups)


class Sent:
    """A step's sums on their way to the host."""

    def __init__(self, blocks: list[tuple[Block, Tensor]]) -> None:
        self.blocks = blocks
        self._event: Any = None
        if blocks[0][0].memory.is_cuda:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        for block, pinned in blocks:
            pinned[: block.used].copy_(block.memory[: block.used], non_blocking=True)
            block.memory[: block.used].zero_()
        if self._event is not None:
            self._event.record()

    @property
    def arrived(self) -> bool:
        """True if :meth:`read` would not wait."""
        return self._event is None or bool(self._event.query())

    def read(self) -> np.ndarray:
        """The sums, uint64 [n]. Waits until they are there."""
        if not self.arrived:
            self._event.synchronize()
        return np.concatenate([pinned[: block.used].numpy() for block, pinned in self.blocks]).view(np.uint64)


class Memory:
    """Blocks on devices, and pinned ones that they are sent to, to be used again and again."""

    def __init__(self) -> None:
        self._free: list[tuple[Block, Tensor]] = []

    def take(self, device: torch.device, count: int) -> tuple[Block, Tensor]:
        """A block with room for so many."""
        for number, (block, _) in enumerate(self._free):
            if block.memory.device == device and block.room(count):
                return self._free.pop(number)
        size = max(BLOCK, count)
        with torch.inference_mode(False):  # to be written in and outside it
            return Block(device, size), torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda")

    def free(self, sent: Sent) -> None:
        """Take memory back that has been read."""
        for block, _ in sent.blocks:
            block.used = 0
        self._free += sent.blocks


class StepSums:
    """The sums of one step."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._blocks: list[tuple[Block, Tensor]] = []

    def add(self, call: SiteCall, groups: Groups) -> None:
        self._block(call.tensor.device, groups.number).add(call, groups)

    def copy(self, captured: CapturedSums) -> None:
        """Enqueue a copy of what a graph adds up in the replay that is enqueued already."""
        for block in captured.blocks:
            mine = self._block(block.memory.device, block.used)
            mine.memory[mine.used : mine.used + block.used].copy_(block.memory[: block.used])
            mine.used += block.used

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def send(self) -> Sent | None:
        """The step is over. None: it had no sums."""
        return Sent(self._blocks) if self._blocks else None

    def _block(self, device: torch.device, count: int) -> Block:
        if not self._blocks or not self._blocks[-1][0].room(count):
            self._blocks.append(self._memory.take(device, count))
        return self._blocks[-1][0]


def reference(call: SiteCall, groups: Groups) -> Tensor:
    """The sums of a call's groups, int64 [count], by torch: what the kernel computes."""
    rows = rows_of(call).contiguous()
    bits = rows.view(_BITS[rows.element_size()]).to(torch.int64).reshape(groups.number, -1)
    place = torch.arange(bits.shape[1], dtype=torch.int64, device=bits.device)
    keys, weights = keys_and_weights(place)
    return torch.sum((bits ^ keys) * weights, 1)


def _launch(call: SiteCall, groups: Groups, out: Tensor, first: int) -> None:
    """Add the sums of a call's groups to ``out`` from ``first`` on, by one launch of the kernel."""
    from specdebug.diverge.kernels import LOOPS, TILE, add_sums

    tensor, at = call.tensor.detach(), call.at
    if tensor.element_size() == 1:  # booleans, and floats that Triton does not know on every GPU
        tensor = tensor.view(torch.int8)
    layers, rows, layer_stride, row_stride = 1, 1, 0, 0
    if at is None:
        tensor = tensor.contiguous()
        size = tensor.numel() // max(groups.number, 1)
        width = size
    else:
        at = at.reshape(-1)
        layers, rows, width = tensor.shape[0], tensor.shape[1], math.prod(tensor.shape[2:])
        if not tensor.is_contiguous() and not tensor[0, 0].is_contiguous():
            tensor = tensor.contiguous()
        layer_stride, row_stride = tensor.stride(0), tensor.stride(1)
        size = groups.unit * layers * width
    if not size or not groups.number:
        return
    loops = LOOPS if at is None else 1
    shares = -(-width // (TILE * loops)) * (size // width)
    grid = (groups.number * shares, 1, 1)
    picked = at is not None
    pointers = (tensor, tensor if at is None else at, out)
    numbers = (first, size, width, layers, rows, layer_stride, row_stride, groups.unit, shares)
    constants = (8 * tensor.element_size(), picked, TILE, loops)
    # Triton's own search for what it compiled takes longer than all else; the machine code depends on no more than this
    key = (tensor.device, tensor.dtype, pointers[1].dtype, picked, *[p.data_ptr() % 16 == 0 for p in pointers])
    compiled = _compiled.get(key)
    if compiled is not None:
        compiled[grid](*pointers, *numbers, *constants)
        return
    compiled = add_sums[grid](*pointers, *numbers, *constants)
    if tensor.is_cuda and torch.version.hip is None:
        _compiled[key] = compiled
