"""The torch executor: attention computed from metadata alone, so wrong metadata gives wrong attention."""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.textbook.attention.metadata import CascadeMetadata, Metadata
from specdebug.engine.textbook.attention.passes import AttentionPass, merge_partial
from specdebug.engine.textbook.attention.prepare import prepare, prepare_each


class TorchAttention:
    """Attention over one prepared batch of one pool, a ``BoundAttention``.

    Metadata is read when it is bound and never again. out_cache_loc: int64 [n], where the batch's own KV goes; None: it
    has none. scale: of the scores, by default D ** -0.5.
    """

    def __init__(
        self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None, scale: float | None = None
    ) -> None:
        self._pool = pool
        self._loc = out_cache_loc
        self._scale = scale
        self.replan(metadata)

    def replan(self, metadata: Metadata) -> None:
        """Attend by ``metadata`` from now on."""
        self._passes: list[AttentionPass] = []
        self._ragged: list[tuple[int, int, AttentionPass]] = []
        if isinstance(metadata, CascadeMetadata):
            self._passes = [prepare(metadata.prefix), prepare(metadata.expand)]
        elif metadata.q_len is not None:
            self._passes = [prepare(metadata)]
        else:
            self._ragged = prepare_each(metadata)

    def __call__(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n, Hq, D], k [n, Hkv, D], v [n, Hkv, Dv] -> [n, Hq * Dv]."""
        assert self._loc is not None
        self._pool.write(layer_id, self._loc, k, v)
        return self.attend(layer_id, q)

    def attend(self, layer_id: int, q: Tensor) -> Tensor:
        """q [n, Hq, D] -> [n, Hq * Dv], over keys and values that are written."""
        pool = self._pool
        if len(self._passes) == 1:
            out, _ = self._passes[0].run(q, pool, layer_id, self._scale, lse=False)
            return out.transpose(1, 2).reshape(q.shape[0], -1)
        if self._passes:
            return self._run_cascade(layer_id, q)
        outs = [one.run_sequence(q[start:stop], pool, layer_id, self._scale) for start, stop, one in self._ragged]
        return torch.cat(outs) if len(outs) != 1 else outs[0]

    def _run_cascade(self, layer_id: int, q: Tensor) -> Tensor:
        parts = []
        for one in self._passes:
            out, logsum = one.run(q, self._pool, layer_id, self._scale, lse=True)
            assert logsum is not None
            parts.append((out.transpose(1, 2).reshape(*q.shape[:2], -1), logsum.transpose(1, 2).reshape(q.shape[:2])))
        merged, _ = merge_partial(parts)
        return merged.reshape(q.shape[0], -1)
