"""Plain decode of the target as a graph: one token per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.attention.planner import AttentionPlanner, SequenceLayout
from specdebug.engine.config import CudaGraphConfig
from specdebug.engine.graph.runner import GraphRunner, StaticBuffer, StaticBuffers, padded_size
from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.memory.fill import FillPolicy
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

    def run(self, inputs: DecodeInputs, attention: LayerAttention) -> Tensor:
        """Logits [B, V]."""
        return self.model.logits(self.model.forward(inputs.input_ids, inputs.seq_lens, attention).hidden)


class DecodeGraphRunner(GraphRunner[DecodeInputs]):
    """Replays :class:`DecodeForward` at captured batch sizes. Padded rows are empty requests on slot 0."""

    def __init__(
        self,
        config: CudaGraphConfig,
        forward: DecodeForward,
        planner: AttentionPlanner,
        attention: AttentionBackend,
        *,
        dtype: torch.dtype,
        guards: bool,
        fill: FillPolicy,
        device: torch.device,
    ) -> None:
        self._callable = forward
        self._planner = planner
        max_bs = config.batch_sizes[-1]
        metadata = ArenaLayout(guards=guards)
        planner.declare_extend(metadata, max_bs, 1)
        buffers = StaticBuffers(
            "decode",
            max_bs,
            inputs=[
                StaticBuffer("input_ids", 1, (), torch.int64),
                StaticBuffer("out_cache_loc", 1, (), torch.int64),
                StaticBuffer("req_pool_indices", 1, (), torch.int64),
                StaticBuffer("seq_lens", 1, (), torch.int64),
            ],
            metadata=metadata,
            outputs=[StaticBuffer("logits", 1, (forward.model.config.vocab_size,), dtype)],
            fill=fill,
            device=device,
        )
        super().__init__(DecodeInputs, config.batch_sizes, buffers, attention, forward.pool)

    def replay(self, inputs: DecodeInputs, seq_lens_cpu: tuple[int, ...]) -> Tensor:
        """Run at the padded size; the logits [B, V] view a static output, valid until the next replay."""
        raw_bs, buffers = inputs.seq_lens.numel(), self.buffers
        bs = padded_size(self.capture_bs, raw_bs)
        assert bs is not None
        if bs != raw_bs:
            buffers.zero_inputs()
        buffers.load(inputs)
        self._replay(bs, self._padded(bs), seq_lens_cpu)
        return DecodeOutputs(**buffers.outputs_of(raw_bs)).logits

    def _plan(self, padded: DecodeInputs, seq_lens_cpu: tuple[int, ...]) -> list[Metadata]:
        layout = SequenceLayout(padded.req_pool_indices, padded.seq_lens, seq_lens_cpu)
        return [self._planner.extend_uniform(layout, 1, self.buffers.workspace)]

    def _locs(self, padded: DecodeInputs) -> list[Tensor]:
        return [padded.out_cache_loc]

    def _forward(self, padded: DecodeInputs, attentions: Sequence[LayerAttention]) -> None:
        outputs = DecodeOutputs(self._callable.run(padded, attentions[0]))
        self.buffers.store(outputs, padded.seq_lens.numel())
