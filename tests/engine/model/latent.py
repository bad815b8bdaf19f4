"""Latent attention over one sequence that remembers rows between calls, as a KV pool would."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class LatentAttention:
    """Causal, scaled by ``scale``; ``rows[layer]`` is [positions, 1, C + R]."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.rows: dict[int, Tensor] = {}

    def __call__(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert torch.equal(k[..., : v.shape[2]], v)
        rows = torch.cat((self.rows[layer_id], k)) if layer_id in self.rows else k.clone()
        self.rows[layer_id] = rows
        n, total = q.shape[0], rows.shape[0]
        keys = rows.expand(-1, q.shape[1], -1).transpose(0, 1)
        visible = torch.ones(n, total, dtype=torch.bool).tril(total - n)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1), keys, keys[..., : v.shape[2]], attn_mask=visible, scale=self.scale
        )
        return out.transpose(0, 1).reshape(n, q.shape[1] * v.shape[2])
