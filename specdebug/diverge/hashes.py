"""Hashes of rows by their bits: equal rows have equal hashes, others do not but for one in 2**64.

On the host XXH3. On a device, and of another engine, whose environment has no XXH3, **groups** of rows are added up,
and then (``recording.Layout``) the sums of a **segment**; hashes of the two kinds are not comparable. On a device there
is no wait: at the end of a step its sums are sent to pinned memory, which the host reads once they are there. So of a
device that is lost all is known but the last step or two. A graph adds up what passes in it to memory of its own, since
the owners of the rows are known only when it is replayed: a group is a row, or all rows. After a replay that memory is
copied to the step's other sums.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdebug.async_probe import SiteCall
from specdebug.diverge.recording import LISTS, Segment, keys_and_weights

with contextlib.suppress(ImportError):
    from xxhash import xxh3_64_intdigest

BLOCK = 4096  # sums in a piece of memory
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_compiled: dict[tuple[object, ...], Any] = {}


def rows_of(call: SiteCall) -> Tensor:
    """The tensor to hash, rows first: the call's own, or of [L, N, ...] the rows ``at``, taken flat, of dimension 1."""
    tensor = call.tensor.detach()
    if call.at is not None and tensor.is_cpu:
        return call.rows().transpose(0, 1)
    if call.at is not None:
        # On a device the probe gathers nothing, and two operations are fewer than it would take for that. A row beyond
        # the last is read as the last.
        return tensor.index_select(1, call.at.reshape(-1).clamp(0, tensor.shape[1] - 1)).transpose(0, 1)
    return tensor.reshape(1) if tensor.dim() == 0 else tensor


class Staging:
    """Copies of small tensors, to be hashed later, in memory that is used again: fresh memory costs more."""

    def __init__(self, size: int = 1 << 20) -> None:
        self._blocks = [ctypes.create_string_buffer(size)]
        self._address = ctypes.addressof(self._blocks[0])
        self._used = 0

    def copy(self, tensor: Tensor) -> int:
        """The address of a copy of a contiguous tensor on the host, good until :meth:`clear`."""
        size = tensor.nbytes
        if self._used + size > len(self._blocks[-1]):
            self._blocks.append(ctypes.create_string_buffer(max(size, 2 * len(self._blocks[-1]))))
            self._address, self._used = ctypes.addressof(self._blocks[-1]), 0
        at = self._address + self._used
        ctypes.memmove(at, tensor.data_ptr(), size)
        self._used += size
        return at

    def clear(self) -> None:
        """Let go of the copies."""
        del self._blocks[:-1]
        self._used = 0


def list_hash(tensor: Tensor) -> int:
    """The hash of a contiguous tensor of integers on the host, whose size another call will not have."""
    return xxh3_64_intdigest(tensor.numpy().data)


class HostHasher:
    """A way to hash, segment by segment, contiguous tensors of one ``shape`` (rows first); found once for many.
    ``layers``: L of a tensor [L, N, ...] whose rows are in dimension 1 (L is second in ``shape``), else 0.
    ``relative``: the values are rows of a tensor that has as many for each request; they are taken from the request's
    first, so that its hash does not depend on its place in the batch. 0: they are not."""

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, segments: Sequence[Segment], layers: int = 0, relative: int = 0
    ) -> None:
        row = dtype.itemsize * math.prod(shape[1:]) // max(layers, 1)
        self._pieces = [(start * row, ctypes.c_char * ((stop - start) * row)) for _, start, stop in segments]
        self._layers = [layer * shape[0] * row for layer in range(layers)]
        self._relative = relative
        self._integers = "iq"[dtype == torch.int64]

    def hashes(self, at: int) -> list[int]:
        """Of each segment of what lies at an address."""
        if self._relative:
            firsts = range(0, len(self._pieces) * self._relative, self._relative)
            pieces = zip(self._pieces, firsts, strict=True)
            return [self._from_first(kind.from_address(at + start), first) for (start, kind), first in pieces]
        if not self._layers:
            return [xxh3_64_intdigest(kind.from_address(at + start)) for start, kind in self._pieces]
        found = []
        for start, kind in self._pieces:
            digest = 0
            for layer in self._layers:
                digest = xxh3_64_intdigest(kind.from_address(at + start + layer), digest)
            found.append(digest)
        return found

    def _from_first(self, content: ctypes.Array[ctypes.c_char], first: int) -> int:
        values = array(self._integers, content.raw)
        return xxh3_64_intdigest(array(self._integers, [v - first if v >= 0 else v for v in values]))


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
    """A piece of memory for sums, zeros at first, that is filled from the front; ``pinned``: where it is sent to."""

    def __init__(self, device: torch.device, size: int, pinned: Tensor | None = None) -> None:
        self.memory = torch.zeros(size, dtype=torch.int64, device=device)
        self.pinned = pinned
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


Described = tuple[str, Sequence[int], torch.dtype, Sequence[int] | None]
"""Of a call: the site, the shape with rows first (empty for a list), the dtype, and the shape of ``at``."""


def described(call: SiteCall) -> Described:
    tensor, at = call.tensor, call.at
    shape: Sequence[int] = tensor.shape or (1,)
    if at is not None:
        shape = (at.numel(), tensor.shape[0], *tensor.shape[2:])
    elif call.site in LISTS:
        shape = ()
    return call.site, shape, tensor.dtype, None if at is None else at.shape


class CapturedCall(NamedTuple):
    """A call in a graph. ``groups``: what the graph adds up of it. ``copy``: what it copies of it, rows first."""

    described: Described
    groups: Groups | None
    copy: Tensor | None


class Captured:
    """The calls in one graph, and the sums that it takes at each replay. ``groups`` names those of a call that are
    added up; ``copied``: sites to copy."""

    def __init__(
        self, groups: Callable[[SiteCall], Groups] | None = None, copied: frozenset[str] = frozenset()
    ) -> None:
        self.blocks: list[Block] = []
        self.calls: list[CapturedCall] = []
        self._groups = groups
        self._copied = copied

    def add(self, call: SiteCall) -> None:
        """Make what is wanted of a call a part of the graph that is being captured."""
        groups = None if self._groups is None else self._groups(call)
        if groups is not None:
            if not self.blocks or not self.blocks[-1].room(groups.number):
                # The zeros are a part of it, too, so they are written at each replay.
                self.blocks.append(Block(call.tensor.device, max(BLOCK, groups.number)))
            self.blocks[-1].add(call, groups)
        copy = rows_of(call).clone() if call.site in self._copied else None
        self.calls.append(CapturedCall(described(call), groups, copy))


class Sent:
    """A step's sums on their way to the host."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self._event: Any = None
        if blocks[0].memory.is_cuda:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        for block in blocks:
            assert block.pinned is not None
            block.pinned[: block.used].copy_(block.memory[: block.used], non_blocking=True)
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
        found = [block.pinned[: block.used].numpy() for block in self.blocks if block.pinned is not None]
        return np.concatenate(found).view(np.uint64)


class Memory:
    """Blocks on devices, and pinned ones that they are sent to, to be used again and again."""

    def __init__(self) -> None:
        self._free: list[Block] = []

    def take(self, device: torch.device, count: int) -> Block:
        """A block with room for so many."""
        for number, block in enumerate(self._free):
            if block.memory.device == device and block.room(count):
                return self._free.pop(number)
        size = max(BLOCK, count)
        with torch.inference_mode(False):  # to be written in and outside it
            return Block(device, size, torch.zeros(size, dtype=torch.int64, pin_memory=device.type == "cuda"))

    def free(self, sent: Sent) -> None:
        """Take memory back that has been read."""
        for block in sent.blocks:
            block.used = 0
        self._free += sent.blocks


class StepSums:
    """The sums of one step."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.blocks: list[Block] = []

    def add(self, call: SiteCall, groups: Groups) -> None:
        self._block(call.tensor.device, groups.number).add(call, groups)

    def copy(self, captured: Captured) -> None:
        """Enqueue a copy of what a graph adds up in the replay that is enqueued already."""
        for block in captured.blocks:
            mine = self._block(block.memory.device, block.used)
            mine.memory[mine.used : mine.used + block.used].copy_(block.memory[: block.used])
            mine.used += block.used

    def send(self) -> Sent | None:
        """The step is over. None: it had no sums."""
        return Sent(self.blocks) if self.blocks else None

    def _block(self, device: torch.device, count: int) -> Block:
        if not self.blocks or not self.blocks[-1].room(count):
            self.blocks.append(self._memory.take(device, count))
        return self.blocks[-1]


def reference(call: SiteCall, groups: Groups) -> Tensor:
    """The sums of a call's groups, int64 [count], by torch: what the kernel computes."""
    rows = rows_of(call).contiguous()
    if not rows.numel():
        return torch.zeros(groups.number, dtype=torch.int64, device=rows.device)
    bits = rows.view(_BITS[rows.element_size()]).to(torch.int64).reshape(groups.number, -1)
    keys, weights = keys_and_weights(torch.arange(bits.shape[1], dtype=torch.int64, device=bits.device))
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
        size = width = tensor.numel() // max(groups.number, 1)
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
    if (compiled := _compiled.get(key)) is not None:
        compiled[grid](*pointers, *numbers, *constants)
        return
    compiled = add_sums[grid](*pointers, *numbers, *constants)
    if tensor.is_cuda and torch.version.hip is None:
        _compiled[key] = compiled
