"""The torch executor: attention computed from metadata alone, so wrong metadata gives wrong attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specdebug.engine.attention.metadata import CascadeMetadata, Metadata
from specdebug.engine.attention.passes import AttentionPass, merge_partial
from specdebug.engine.attention.prepare import prepare, prepare_each
from specdebug.engine.memory.kv_pool import KVPool


class TorchAttention:
    """Attention over one prepared batch of one pool: called by every layer as ``LayerAttention``.

    Args:
        metadata: as planned; read here and never again.
        pool: keys and values by slot.
        out_cache_loc: int64 [n], where this batch's own keys and values go.
    """

    def __init__(self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor) -> None:
        self._pool = pool
        self._loc = out_cache_loc
        self.replan(metadata)

    def replan(self, metadata: Metadata) -> None:
        """Attend by ``metadata`` from now on."""
        self._cascade: tuple[AttentionPass, AttentionPass] | None = None
        self._uniform: AttentionPass | None = None
        self._ragged: list[tuple[int, int, AttentionPass]] = []
        if isinstance(metadata, CascadeMetadata):
            self._cascade = (prepare(metadata.prefix), prepare(metadata.expand))
        elif metadata.q_len is not None:
            self._uniform = prepare(metadata)
        else:
            self._ragged = prepare_each(metadata)

    def __call__(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n, Hq, D], k and v [n, Hkv, D] -> [n, Hq * D]."""
        pool = self._pool
        pool.write(layer_id, self._loc, k, v)
        if self._uniform is not None:
            out, _ = self._uniform.run(q, pool, layer_id, lse=False)
            return out.transpose(1, 2).reshape(q.shape[0], -1)
        if self._cascade is not None:
            return self._run_cascade(self._cascade, layer_id, q)
        outs = [_attend_sequence(one, q[start:stop], pool, layer_id) for start, stop, one in self._ragged]
        return torch.cat(outs) if len(outs) != 1 else outs[0]

    def _run_cascade(self, passes: tuple[AttentionPass, AttentionPass], layer_id: int, q: Tensor) -> Tensor:
        parts = []
        num_heads, dim = q.shape[1], q.shape[2]
        for one in passes:
            out, logsum = one.run(q, self._pool, layer_id, lse=True)
            assert logsum is not None
            rows = out.transpose(1, 2).reshape(-1, num_heads, dim)
            parts.append((rows, logsum.transpose(1, 2).reshape(-1, num_heads)))
        merged, _ = merge_partial(parts)
        return merged.reshape(q.shape[0], -1)


def _attend_sequence(one: AttentionPass, q: Tensor, pool: KVPool, layer: int) -> Tensor:
    """One sequence of many queries (a prefill): [n, Hq, D] -> [n, Hq * D]."""
    k, v = one.keys_values(pool, layer)
    out = functional.scaled_dot_product_attention(
        q.unsqueeze(0).transpose(1, 2),
        k,
        v,
        attn_mask=one.mask,
        is_causal=one.mask is None and one.q_len > 1,
        enable_gqa=True,
    )
    return out.transpose(1, 2).reshape(q.shape[0], -1)
