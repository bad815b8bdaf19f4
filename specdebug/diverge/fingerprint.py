"""Hashes of rows, by their bits: equal rows have equal hashes, others do not but for one in 2**64.

On a CPU that is XXH3. On a device it is a sum modulo 2**64 over (bits XOR key) times odd weight, key and weight by
position, written to a ring there and read once the ring is full: nobody waits before. One changed element always
changes the sum. Hashes of the two are not comparable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xxhash
from torch import Tensor

from specdebug.diverge.owners import Segment

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
RING = 1 << 16
"""Hashes a device holds before the host reads them."""


def rows_of(tensor: Tensor, at: Tensor | None) -> Tensor:
    """What is hashed, rows first: the tensor, or of [L, N, ...] the rows ``at`` (taken flat) of its dimension 1."""
    tensor = tensor.detach()
    if at is not None:
        at = at.reshape(-1).clamp(0, tensor.shape[1] - 1)
        return tensor.index_select(1, at).transpose(0, 1)
    return tensor.reshape(1) if tensor.dim() == 0 else tensor


def on_host(rows: Tensor, segments: Sequence[Segment], relative: int = 0) -> list[int]:
    """Hashes of segments of rows that lie on the host.

    ``relative``: the values are rows of a tensor that has as many for each request; they are taken from the request's
    first, so that a request has the same hash wherever it stands in the batch. 0: they are not.
    """
    bits = _bits(rows).numpy()
    if not bits.flags.c_contiguous:
        bits = np.ascontiguousarray(bits)
    if relative:
        return [_digest(_from_first(bits[start:stop], n * relative)) for n, (_, start, stop) in enumerate(segments)]
    return [_digest(bits[start:stop]) for _, start, stop in segments]


def _from_first(values: np.ndarray, first: int) -> np.ndarray:
    return np.where(values >= 0, values - first, values)


def _digest(bits: np.ndarray) -> int:
    return xxhash.xxh3_64_intdigest(bits.data)


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
        """Enqueue hashes of segments. Arguments as of :func:`on_host`."""
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
