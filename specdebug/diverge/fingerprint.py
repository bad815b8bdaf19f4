"""Hashes of rows, by their bits: equal rows have equal hashes, others do not but for one in 2**64.

On a CPU that is XXH3. On a device it is a sum modulo 2**64 over (bits XOR key) times odd weight, key and weight by
position, written to a ring there and read once the ring is full: nobody waits before. One changed element always
changes the sum. Hashes of the two are not comparable.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from specdebug.diverge.owners import Segment

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
RING = 1 << 16
"""Hashes a device holds before the host reads them."""
_NOTHING = xxh3_64_intdigest(b"")


def rows_of(tensor: Tensor, at: Tensor | None) -> Tensor:
    """What is hashed, rows first: the tensor, or of [L, N, ...] the rows ``at`` (taken flat) of its dimension 1."""
    tensor = tensor.detach()
    if at is not None:
        return picked(tensor, at).transpose(0, 1)
    return tensor.reshape(1) if tensor.dim() == 0 else tensor


class HostPlan:
    """How to hash tensors of one shape that lie on the host, found once for many.

    Args:
        tensor: one of them, contiguous: rows first, or [L, N, ...] whose rows are in dimension 1.
        segments: rows to hash together.
        layers: L of the latter form, else 0.
        relative: the values are rows of a tensor that has as many for each request; they are taken from the request's
            first, so that a request has the same hash wherever it stands in the batch. 0: they are not.
    """

    def __init__(self, tensor: Tensor, segments: Sequence[Segment], layers: int = 0, relative: int = 0) -> None:
        rows = tensor.shape[1] if layers else tensor.shape[0]
        stride = tensor.numel() * tensor.element_size() // (max(rows, 1) * max(layers, 1))
        self._layers = layers * rows * stride, stride * rows
        self._pieces = [(start * stride, ctypes.c_char * ((stop - start) * stride)) for _, start, stop in segments]
        self._first: np.ndarray | None = None
        if relative:
            first = [number * relative for number, (_, start, stop) in enumerate(segments) for _ in range(start, stop)]
            self._first = np.array(first, dtype=tensor.numpy().dtype).reshape(-1, *[1] * (tensor.dim() - 1))

    def hashes(self, tensor: Tensor) -> list[int]:
        """Of each segment."""
        # Addresses, because views and conversions of small tensors would cost many times what hashing them does.
        at = tensor.data_ptr()
        if not at:
            return [_NOTHING] * len(self._pieces)
        size, layer = self._layers
        if size:
            return [self._through_layers(at + offset, size, layer, kind) for offset, kind in self._pieces]
        if self._first is not None:
            values = tensor.numpy()
            values = np.where(values >= 0, values - self._first, values)
            at = values.ctypes.data
        return [xxh3_64_intdigest(kind.from_address(at + offset)) for offset, kind in self._pieces]

    def _through_layers(self, at: int, size: int, layer: int, kind: type[ctypes.Array[ctypes.c_char]]) -> int:
        digest = 0
        for offset in range(0, size, layer):
            digest = xxh3_64_intdigest(kind.from_address(at + offset), digest)
        return digest


def picked(tensor: Tensor, at: Tensor) -> Tensor:
    """Of [L, N, ...] the rows ``at`` (taken flat) of dimension 1, in that form; beyond the last: the last."""
    return tensor.detach().index_select(1, at.reshape(-1).clamp(0, tensor.shape[1] - 1))


def _bits(rows: Tensor) -> Tensor:
    return rows.view(_BITS[rows.element_size()]) if rows.is_floating_point() else rows


class DeviceHashes:
    """A ring on a device. What is hashed is enqueued; :meth:`take` is the only one to wait."""

    def __init__(self, device: torch.device, capacity: int = RING) -> None:
        self._ring = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._used = 0
        self._keys = self._weights = torch.empty(0, dtype=torch.int64, device=device)

    @property
    def used(self) -> int:
        """Hashes that wait to be taken."""
        return self._used

    def room(self, count: int) -> bool:
        """Whether that many more fit."""
        return self._used + count <= self._ring.numel()

    def put(self, rows: Tensor, segments: Sequence[Segment], relative: int = 0) -> None:
        """Enqueue hashes of segments. Arguments as of :class:`HostPlan`."""
        bits = _bits(rows)
        for number, (_, start, stop) in enumerate(segments):
            part = bits[start:stop].reshape(-1).to(torch.int64)
            if relative:
                part = torch.where(part >= 0, part - number * relative, part)
            keys, weights = self._positions(part.numel())
            self._ring[self._used] = ((part ^ keys) * weights).sum()
            self._used += 1

    def take(self) -> list[int]:
        """All hashes since the last time, in order. Waits for the device."""
        taken: list[int] = (self._ring[: self._used].cpu().numpy().view(np.uint64)).tolist()
        self._used = 0
        return taken

    def _positions(self, count: int) -> tuple[Tensor, Tensor]:
        """Key and odd weight of each of ``count`` positions."""
        if count > self._keys.numel():
            index = torch.arange(1, 2 * count + 1, dtype=torch.int64, device=self._ring.device)
            mixed = index * -7046029254386353131  # 2**64 over the golden ratio
            mixed = (mixed ^ (mixed >> 29)) * -4658895280553007687
            self._keys, self._weights = mixed ^ (mixed >> 32), (mixed ^ (mixed >> 27)) | 1
        return self._keys[:count], self._weights[:count]
