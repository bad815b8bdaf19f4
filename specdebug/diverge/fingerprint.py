"""Hashes of rows on the host, by their bits: XXH3. Equal rows have equal hashes, others do not but for one in 2**64."""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from specdebug.async_probe import SiteCall
from specdebug.diverge.owners import Segment


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
    first, so that its hash does not depend on its place in the batch. 0: they are not.
    """

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
