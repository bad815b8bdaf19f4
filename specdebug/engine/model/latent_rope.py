"""Rotary position embedding of the decoupled parts of latent attention: some columns of each query, and one key part.

Pairs are adjacent in memory, as in ``rope.py``. That is how DeepSeek's checkpoints hold them (``rope_interleave``); the
loader reorders those of others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.engine.model.rope import inverse_frequencies


class LatentRotary:
    """The phases of positions 0 .. max_positions-1, for vectors of ``dim`` columns."""

    def __init__(self, dim: int, theta: float, max_positions: int, device: torch.device) -> None:
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * inverse_frequencies(dim, theta, None)
        self.table = torch.polar(torch.ones_like(angles), angles).to(device)  # [P, dim/2] c64
        # cosine and sine of every pair, for a kernel: [P, dim] f32
        self.flat_table = torch.view_as_real(self.table).flatten(1)

    @property
    def max_positions(self) -> int:
        """Positions in the table."""
        return self.table.shape[0]

    def at(self, positions: Tensor) -> Tensor:
        """Prepare positions [n] i64, once per forward: their phases [n, dim/2] c64; on a GPU as they are.
        Raises IndexError if one is outside the table; on a GPU this is not checked."""
        return positions if self.table.is_cuda else self.table.index_select(0, positions)

    def turn(self, x: Tensor, phases: Tensor) -> Tensor:
        """Turn x [n, ..., dim], which may be a slice, by the phases of its rows; the result is new, in x's dtype."""
        if self.table.is_cuda:
            phases = self.table.index_select(0, phases)
        turned = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        pairs = torch.view_as_complex(turned.view(*x.shape[:-1], x.shape[-1] // 2, 2))
        pairs.mul_(phases.view(phases.shape[0], *(1,) * (x.ndim - 2), phases.shape[1]))
        return turned.to(x.dtype)
