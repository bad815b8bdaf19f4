"""Rotary position embedding as one complex product over the fused q, k and v of a token.

To rotate a pair (a, b) by an angle is to multiply a + ib by e^(i angle). With pairs adjacent in memory
(``interleave_pairs``) the fused row is a row of complex numbers, and one in-place product turns every head; value heads
are multiplied by one. On a GPU one kernel does it, the look-up included.
"""

import math

import torch
from torch import Tensor

from specdebug.engine.kernels.kv_cache import KVDestination
from specdebug.engine.model.config import LlamaConfig, RopeScaling


def interleave_pairs(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder projection rows [heads*D, ...] within each head so that pairs (i, i+D/2) become adjacent."""
    return paired(rows, head_dim).reshape(rows.shape)


def paired(rows: Tensor, head_dim: int) -> Tensor:
    """View rows in the order of ``interleave_pairs``: [heads*D, ...] -> [heads, D/2, 2, ...]."""
    return rows.view(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(1, 2)


def separate_pairs(keys: Tensor, rotary_dim: int | None = None) -> Tensor:
    """Undo ``interleave_pairs`` on the last ``rotary_dim`` columns of keys [..., D], on all unless given."""
    start = 0 if rotary_dim is None else keys.shape[-1] - rotary_dim
    turned = keys[..., start:]
    separated = turned.reshape(*turned.shape[:-1], turned.shape[-1] // 2, 2).transpose(-1, -2).reshape(turned.shape)
    return separated if start == 0 else torch.cat((keys[..., :start], separated), -1)


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Radians per position for each pair, [D/2] f32, computed in f32 as transformers computes them.

    llama3 scaling (Llama 3.1 model card; ``_compute_llama3_parameters`` in transformers) slows wavelengths longer than
    ``original/low_freq_factor`` by ``factor``, keeps those shorter than ``original/high_freq_factor``, and blends those
    between linearly in original/wavelength.
    """
    frequency = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if scaling is None:
        return frequency
    original = scaling.original_max_position_embeddings
    turns = original / (2 * math.pi / frequency)  # full turns within the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - keep) * frequency / scaling.factor + keep * frequency


class Rotary:
    """The phases of positions 0 .. max_positions-1, and the product that applies them."""

    def __init__(self, config: LlamaConfig, max_positions: int, device: torch.device) -> None:
        frequency = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequency
        phases = torch.polar(torch.ones_like(angles), angles)
        self.table = torch.stack((phases, torch.ones_like(phases)), dim=1).to(device)  # [P, 2, D/2] c64
        self.max_positions = max_positions
        self._turned = config.num_heads + config.num_kv_heads
        self._row_of_head = torch.tensor([0] * self._turned + [1] * config.num_kv_heads, device=device)
        self._head_counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self._shape = (sum(self._head_counts), config.head_dim)
        # cosine and sine of every pair, then the ones that value heads would get: [P, 2*D] f32
        self._flat_table = torch.view_as_real(self.table).flatten(1) if self.table.is_cuda else None
        self.stores = self.table.is_cuda  # ``split_and_store`` can be called

    def at(self, positions: Tensor) -> Tensor:
        """Prepare positions [n] i64 for ``split``, once per forward: their phases [n, heads*D/2] c64; on a GPU as they
        are. Raises IndexError if a position is outside the table; on a GPU this is not checked.
        """
        if self._flat_table is not None:
            return positions
        return self.table.index_select(0, positions).index_select(1, self._row_of_head).flatten(1)

    def split(self, qkv: Tensor, phases: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turn fused qkv [n, heads*D] (in place when f32 or on a GPU) and cut it into q, k, v [n, heads, D]."""
        if self._flat_table is not None:
            from specdebug.engine.kernels.triton.layers import rotate

            rotate(qkv, phases, self._flat_table, self._turned, self._shape[1])
        elif qkv.dtype == torch.float32:
            qkv.view(torch.complex64).mul_(phases)
        else:
            turned = qkv.float().view(torch.complex64).mul_(phases)
            qkv = turned.view(torch.float32).to(qkv.dtype)
        # the free function: Tensor.split is a Python wrapper that costs as much as the product itself
        q, k, v = torch.split_with_sizes(qkv.view(qkv.shape[0], *self._shape), self._head_counts, 1)
        return q, k, v

    def split_and_store(self, qkv: Tensor, phases: Tensor, cache: KVDestination) -> Tensor:
        """Split, but put keys and values in their cache, in the same kernel; return q [n, Hq, D]."""
        from specdebug.engine.kernels.triton.layers import rotate_and_store

        assert self._flat_table is not None
        rotate_and_store(qkv, phases, self._flat_table, self._turned, self._shape[1], cache)
        return qkv.view(qkv.shape[0], *self._shape)[:, : self._head_counts[0]]


class LatentRotary:
    """The phases of positions 0 .. max_positions-1 for the decoupled parts of latent attention, vectors of ``dim``
    columns: a part of each query, and one key part. Pairs are adjacent, too, as DeepSeek's checkpoints hold them
    (``rope_interleave``); the loader reorders those of others."""

    def __init__(self, dim: int, theta: float, max_positions: int, device: torch.device) -> None:
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * inverse_frequencies(dim, theta, None)
        self.table = torch.polar(torch.ones_like(angles), angles).to(device)  # [P, dim/2] c64
        self.max_positions = max_positions
        # cosine and sine of every pair, for a kernel: [P, dim] f32
        self.flat_table = torch.view_as_real(self.table).flatten(1)

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
