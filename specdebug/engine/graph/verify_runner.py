"""Target verify as a graph: T tokens per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.attention.planner import AttentionPlanner, SequenceLayout
from specdebug.engine.config import CudaGraphConfig
from specdebug.engine.graph.runner import GraphRunner, StaticBuffers, padded_size
from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.memory.fill import FillPolicy
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.llama import TargetModel


@dataclass(frozen=True)
class VerifyInputs:
    """input_ids, positions, out_cache_loc: int64 [B·T]. mask: bool [B, T, T]. req_pool_indices, seq_lens (L):
    int64 [B]."""

    input_ids: Tensor
    positions: Tensor
    out_cache_loc: Tensor
    mask: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor


@dataclass(frozen=True)
class VerifyOutputs:
    """logits: [B·T, V]. features: [B·T, F], what the draft consumes."""

    logits: Tensor
    features: Tensor


class VerifyForward:
    """The callable: one target forward over a tree batch."""

    def __init__(
        self, model: TargetModel, pool: KVPool, aux_layers: tuple[int, ...], feature_size: int
    ) -> None:
        self.model = model
        self.pool = pool
        self.aux_layers = aux_layers
        self.feature_size = feature_size

    def run(self, inputs: VerifyInputs, attention: LayerAttention) -> VerifyOutputs:
        """Logits of every node, and its features: the final hidden, or EAGLE-3's auxiliary ones."""
        output = self.model.forward(inputs.input_ids, inputs.positions, attention, self.aux_layers)
        features = output.hidden if output.aux is None else output.aux
        return VerifyOutputs(self.model.logits(output.hidden), features)


class VerifyGraphRunner(GraphRunner[VerifyInputs]):
    """Replays :class:`VerifyForward` at captured batch sizes. Padded rows are empty requests on slot 0."""

    def __init__(
        self,
        config: CudaGraphConfig,
        forward: VerifyForward,
        planner: AttentionPlanner,
        attention: AttentionBackend,
        *,
        tree_size: int,
        dtype: torch.dtype,
        guards: bool,
        fill: FillPolicy,
        device: torch.device,
    ) -> None:
        self._callable = forward
        self._planner = planner
        self._tree_size = tree_size
        max_bs = config.batch_sizes[-1]
        tokens = max_bs * tree_size
        metadata = ArenaLayout(guards=guards)
        planner.declare_verify(metadata, max_bs)
        buffers = StaticBuffers(
            inputs=[
                ("verify.input_ids", (tokens,), torch.int64),
                ("verify.positions", (tokens,), torch.int64),
                ("verify.out_cache_loc", (tokens,), torch.int64),
                ("verify.tree_mask", (max_bs, tree_size, tree_size), torch.bool),
                ("verify.req_pool_indices", (max_bs,), torch.int64),
                ("verify.seq_lens", (max_bs,), torch.int64),
            ],
            metadata=metadata,
            outputs=[
                ("verify.logits", (tokens, forward.model.config.vocab_size), dtype),
                ("verify.features", (tokens, forward.feature_size), dtype),
            ],
            fill=fill,
            device=device,
        )
        super().__init__(config.batch_sizes, buffers, attention, forward.pool)

    def replay(self, inputs: VerifyInputs, seq_lens_cpu: tuple[int, ...]) -> VerifyOutputs:
        """Run at the padded size; the result views static outputs, valid until the next replay."""
        raw_bs, nodes, buffers = inputs.seq_lens.numel(), self._tree_size, self.buffers
        bs = padded_size(self.capture_bs, raw_bs)
        assert bs is not None
        live = raw_bs * nodes
        if bs != raw_bs:
            buffers["verify.input_ids"].zero_()
            buffers["verify.positions"].zero_()
            buffers["verify.out_cache_loc"].zero_()
            buffers["verify.tree_mask"].fill_(True)
            buffers["verify.req_pool_indices"].zero_()
            buffers["verify.seq_lens"].zero_()
        buffers.load(
            {
                "verify.input_ids": inputs.input_ids,
                "verify.positions": inputs.positions,
                "verify.out_cache_loc": inputs.out_cache_loc,
                "verify.tree_mask": inputs.mask,
                "verify.req_pool_indices": inputs.req_pool_indices,
                "verify.seq_lens": inputs.seq_lens,
            }
        )
        self._launch(bs, self._padded(bs), seq_lens_cpu)
        return VerifyOutputs(buffers.rows("verify.logits", live), buffers.rows("verify.features", live))

    def _padded(self, bs: int) -> VerifyInputs:
        buffers, rows = self.buffers, bs * self._tree_size
        return VerifyInputs(
            input_ids=buffers.rows("verify.input_ids", rows),
            positions=buffers.rows("verify.positions", rows),
            out_cache_loc=buffers.rows("verify.out_cache_loc", rows),
            mask=buffers.rows("verify.tree_mask", bs),
            req_pool_indices=buffers.rows("verify.req_pool_indices", bs),
            seq_lens=buffers.rows("verify.seq_lens", bs),
        )

    def _plan(self, padded: VerifyInputs, seq_lens_cpu: tuple[int, ...]) -> list[Metadata]:
        layout = SequenceLayout(padded.req_pool_indices, padded.seq_lens, seq_lens_cpu)
        return [self._planner.verify(layout, padded.mask, self.buffers.workspace)]

    def _locs(self, padded: VerifyInputs) -> list[Tensor]:
        return [padded.out_cache_loc]

    def _forward(self, padded: VerifyInputs, attentions: Sequence[LayerAttention]) -> None:
        result = self._callable.run(padded, attentions[0])
        rows = padded.input_ids.numel()
        self.buffers.rows("verify.logits", rows).copy_(result.logits)
        self.buffers.rows("verify.features", rows).copy_(result.features)
