"""Plain decode of the target as a graph: one token per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.attention.planner import SequenceLayout
from specdebug.engine.graph.runner import GraphRunner, RunnerParts, StaticBuffer
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.llama import TargetModel


@dataclass(frozen=True)
class DecodeInputs:
    """int64 [B] each: the newest tokens, the slots of their KV, rows, and L, which is also their position."""

    input_ids: Tensor
    out_cache_loc: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor


@dataclass(frozen=True)
class DecodeOutputs:
    """logits: [B, V]."""

    logits: Tensor


class DecodeForward:
    """The callable: one target forward over one token per request."""

    def __init__(self, model: TargetModel, pool: KVPool) -> None:
        self.model = model
        self.pool = pool

    def run(self, inputs: DecodeInputs, attention: LayerAttention) -> DecodeOutputs:
        """Logits of every request."""
        return DecodeOutputs(self.model.logits(self.model.forward(inputs.input_ids, inputs.seq_lens, attention).hidden))


class DecodeGraphRunner(GraphRunner[DecodeInputs, DecodeOutputs]):
    """Replays :class:`DecodeForward` at captured batch sizes."""

    def __init__(self, parts: RunnerParts, forward: DecodeForward, attention: AttentionBackend) -> None:
        self._callable = forward
        super().__init__(
            parts,
            "decode",
            attention,
            forward.pool,
            records=(DecodeInputs, DecodeOutputs),
            inputs=[
                StaticBuffer("input_ids", 1, (), torch.int64),
                StaticBuffer("out_cache_loc", 1, (), torch.int64),
                StaticBuffer("req_pool_indices", 1, (), torch.int64),
                StaticBuffer("seq_lens", 1, (), torch.int64),
            ],
            outputs=[StaticBuffer("logits", 1, (forward.model.config.vocab_size,), parts.dtype)],
            declare=partial(parts.planner.declare_extend, q_len=1),
        )

    def _plan(self, padded: DecodeInputs, seq_lens_cpu: tuple[int, ...]) -> list[Metadata]:
        layout = SequenceLayout(padded.req_pool_indices, padded.seq_lens, seq_lens_cpu)
        return [self._planner.extend_uniform(layout, 1, self.buffers.workspace)]

    def _run(self, padded: DecodeInputs, attentions: Sequence[LayerAttention]) -> DecodeOutputs:
        return self._callable.run(padded, attentions[0])
