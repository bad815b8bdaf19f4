"""The arithmetic of attention for the stand-ins: requests of a batch together, in float32.

Requests of many lengths are padded to the longest. A draft of trees asks for one query of each of dozens of branches,
in each layer of each step: one by one, they would take most of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

AT_ONCE = 1 << 16
"""Positions, padding included, whose keys and values are gathered at once."""


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, visible: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One request: attention [n, heads, D] and the logs of the sums of weights [heads, n]. k, v: [m, KV heads, D];
    causal: aligned to the last key; visible: bool [n, m]."""
    if causal:
        count, length = q.shape[0], k.shape[0]
        seen = torch.arange(length) <= torch.arange(length - count, length).unsqueeze(1)
        visible = seen if visible is None else seen & visible
    out, lse = _attend(q[None], k[None], v[None], scale, None if visible is None else visible[None])
    return out[0], lse[0]


def attend_slots(
    q: Tensor, k: Tensor, v: Tensor, slots: Tensor, lengths: Sequence[int], scale: float, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """As many queries of each request, q: [B, n, heads, D], over the first ``lengths[b]`` of its ``slots[b]``, int64
    [B, at least the longest], of k, v: [slots, KV heads, D]. Returns [B, n, heads, D] and [B, heads, n]; zeros and -inf
    for a request of no length."""
    out = torch.zeros_like(q)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("-inf"))
    longest = max(lengths, default=0)
    if not longest:
        return out, lse
    each = max(1, AT_ONCE // longest)
    for start in range(0, q.shape[0], each):
        some = slice(start, start + each)
        ends = torch.tensor(lengths[some]).unsqueeze(1)
        inside = torch.arange(longest) < ends
        at = slots[some, :longest].masked_fill(~inside, 0)
        # padding reads slot 0, of which nothing may come through, not even a NaN times no weight
        keys, values = (cache[at].masked_fill(~inside[..., None, None], 0) for cache in (k, v))
        last = ends - q.shape[1] + torch.arange(q.shape[1]) if causal else (ends - 1).expand(-1, q.shape[1])
        seen = torch.arange(longest) <= last.unsqueeze(2)
        out[some], lse[some] = _attend(q[some], keys, values, scale, seen)
    return out, lse


def padded(flat: Tensor, ends: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Rows ``flat[ends[b] : ends[b + 1]]`` beside each other, int64 [B, the longest], and their lengths. What is beyond
    a row's length is another's."""
    starts, lengths = list(ends[:-1]), [stop - start for start, stop in pairwise(ends)]
    places = torch.tensor(starts, dtype=torch.int64).unsqueeze(1) + torch.arange(max([*lengths, 0]))
    return flat[places.clamp(max=max(flat.numel() - 1, 0))].long(), lengths


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    """q: [B, n, heads, D]; k, v: [B, m, KV heads, D]; visible: bool [B, n, m]. A query that sees nothing gets zeros."""
    batch, count, heads, width = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    queries = q.float().view(batch, count, kv_heads, group, width).permute(0, 2, 3, 1, 4)
    queries = queries.reshape(batch, kv_heads, group * count, width)
    scores = (queries @ k.float().permute(0, 2, 3, 1)).view(batch, kv_heads, group, count, -1) * scale
    if visible is not None:
        scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    lse = scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp()
    weights = weights.masked_fill(torch.isneginf(lse).unsqueeze(-1), 0)
    out = weights.view(batch, kv_heads, group * count, -1) @ v.float().permute(0, 2, 1, 3)
    out = out.view(batch, kv_heads, group, count, width).permute(0, 3, 1, 2, 4).reshape(q.shape)
    return out.to(q.dtype), lse.reshape(batch, heads, count)
