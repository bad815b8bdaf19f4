"""One pass of paged attention: a padded slot table, a mask, and the product over one layer's keys and values.

Padding repeats a sequence's own first slot under the mask, because a kernel never loads past a sequence's end: a NaN
there must not leak, one inside the sequence must.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from specdebug.engine.errors import IllegalAddress
from specdebug.engine.memory.kv_pool import KVPool

NEG_INF = float("-inf")
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass
class AttentionPass:
    """Sequences of ``q_len`` queries each. mask: additive float32 [B or 1, 1, q_len, W].

    Keys come from ``slots``, int64 [B, W], or from ``span`` (start, stop) where a single sequence's slots are
    consecutive. empty: bool [B], sequences without keys.
    """

    slots: Tensor | None
    q_len: int
    mask: Tensor | None
    empty: Tensor | None
    span: tuple[int, int] | None
    splits: int = 1
    _folded: Tensor | None = None

    def _keys_values(self, pool: KVPool, layer: int) -> tuple[Tensor, Tensor, int]:
        """[B, num_kv_heads, W, head_dim] each, and how many of the last one's columns are values.

        Where values are the first columns of keys, they are not fetched again: a kernel for one width serves both, and
        what it makes of the other columns is discarded.
        """
        k, v = pool.kv_buffer(layer)
        value_dim = v.shape[-1]
        if value_dim != k.shape[-1]:
            assert v.data_ptr() == k.data_ptr(), "values of another width than keys must be their first columns"
            v = k
        return *self._fetch(k, v, pool.size), value_dim

    def _fetch(self, k: Tensor, v: Tensor, pool_size: int) -> tuple[Tensor, Tensor]:
        if self.span is not None:
            start, stop = self.span
            if stop > pool_size:
                raise IllegalAddress("attention.kv_cache", f"slot {stop - 1} of a pool of {pool_size}")
            return k[start:stop].unsqueeze(0).transpose(1, 2), v[start:stop].unsqueeze(0).transpose(1, 2)
        assert self.slots is not None
        flat = self.slots.view(-1)
        shape = (*self.slots.shape, *k.shape[1:])
        try:
            keys = k.index_select(0, flat)
            values = keys if v is k else v.index_select(0, flat)
        except (IndexError, RuntimeError) as error:
            detail = f"slots {int(flat.min())}..{int(flat.max())} of a pool of {pool_size}"
            raise IllegalAddress("attention.kv_cache", detail) from error
        return keys.view(shape).transpose(1, 2), values.view(shape).transpose(1, 2)

    def run_sequence(self, q: Tensor, pool: KVPool, layer: int, scale: float | None = None) -> Tensor:
        """Attend one sequence of many queries (a prefill): [n, Hq, D] -> [n, Hq * Dv]."""
        k, v, value_dim = self._keys_values(pool, layer)
        causal = self.mask is None and self.q_len > 1
        out = functional.scaled_dot_product_attention(
            q.unsqueeze(0).transpose(1, 2), k, v, attn_mask=self.mask, is_causal=causal, scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2)[..., :value_dim].reshape(q.shape[0], -1)

    def run(
        self, q: Tensor, pool: KVPool, layer: int, scale: float | None = None, *, lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """q [B * q_len, Hq, D] -> out [B, Hq, q_len, Dv] (a view), log-sum-exp [B, Hq, q_len] if asked.

        ``scale``: of the scores, by default D ** -0.5.
        """
        k, v, value_dim = self._keys_values(pool, layer)
        batch, num_kv, _, dim = k.shape
        group = q.shape[1] // num_kv
        # Query heads that share a kv head become extra query rows: no copy of keys per head.
        folded = q.reshape(batch, self.q_len, num_kv, group, dim).permute(0, 2, 3, 1, 4)
        folded = folded.reshape(batch, num_kv, group * self.q_len, dim)
        mask = self._folded_mask(group)
        if self.splits > 1:
            out, logsum = self._split(folded, k, v, mask, scale)
        else:
            out, logsum = _flash(folded, k, v, attn_mask=mask, scale=scale)
        if self.empty is not None:
            out = out.masked_fill(self.empty.view(-1, 1, 1, 1), 0.0)
            logsum = logsum.masked_fill(self.empty.view(-1, 1, 1), NEG_INF)
        shape = (batch, num_kv * group, self.q_len)
        return out.reshape(*shape, dim)[..., :value_dim], logsum.reshape(shape) if lse else None

    def _folded_mask(self, group: int) -> Tensor | None:
        """The mask repeated for each query head of a group; the same for every layer, so made once."""
        if self.mask is None or self.q_len == 1 or group == 1:
            return self.mask
        if self._folded is None:
            self._folded = self.mask.repeat(1, 1, group, 1)
        return self._folded

    def _split(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None
    ) -> tuple[Tensor, Tensor]:
        width = k.shape[2]
        step = -(-width // self.splits)
        parts = []
        for start in range(0, width, step):
            stop = min(start + step, width)
            part_mask = None if mask is None else mask[..., start:stop]
            out, logsum = _flash(q, k[:, :, start:stop], v[:, :, start:stop], attn_mask=part_mask, scale=scale)
            if part_mask is not None:
                dead = (part_mask == NEG_INF).all(dim=-1).expand(logsum.shape)
                out = out.masked_fill(dead.unsqueeze(-1), 0.0)
                logsum = logsum.masked_fill(dead, NEG_INF)
            parts.append((out, logsum))
        return merge_partial(parts)


def merge_partial(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge attention over disjoint key sets: outs [..., D], log-sum-exps float32 [...], -inf for an empty set.

    Weighs in float32; the merged out has the dtype of the parts.
    """
    logsums = torch.stack([logsum for _, logsum in parts])
    total = torch.logsumexp(logsums, dim=0)
    weights = torch.exp(logsums - total).masked_fill(total == NEG_INF, 0.0)
    outs = torch.stack([out for out, _ in parts])
    return (outs * weights.unsqueeze(-1)).sum(dim=0).to(outs.dtype), total
