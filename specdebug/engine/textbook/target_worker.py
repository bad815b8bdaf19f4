"""The target model on its own: prefill of prompt chunks, and plain one-token decoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_nonfinite, maybe_detect_oob
from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.device import Readback, upload
from specdebug.engine.graph.runner import EngineParts, GraphTable, StaticBuffer, StepForward, capture, launcher
from specdebug.engine.graph.tables import ids
from specdebug.engine.memory.arena import GuardViolation, Scratch
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.models import TargetModel
from specdebug.engine.textbook.attention.planner import AttentionPlanner, Metadata, SequenceLayout, Workspace
from specdebug.engine.textbook.memory.req_to_token import ReqToToken
from specdebug.engine.textbook.request import PrefillBatch, Request
from specdebug.engine.textbook.sampler import sample, steered
from specdebug.events import Forward, PromptComputed, TokensSampled


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


class DecodeForward(StepForward[DecodeInputs, DecodeOutputs]):
    """The step of a request that does not speculate: one target forward over one token."""

    name: Forward = "decode"

    def __init__(self, model: TargetModel, pool: KVPool) -> None:
        self.model, self.pool = model, pool

    def plan(
        self, planner: AttentionPlanner, inputs: DecodeInputs, lens: tuple[int, ...], workspace: Workspace, slack: int
    ) -> list[Metadata]:
        batch = SequenceLayout(inputs.req_pool_indices, inputs.seq_lens, lens, slack)
        return [planner.extend_uniform(batch, 1, workspace)]

    def run(self, inputs: DecodeInputs, attentions: Sequence[LayerAttention]) -> DecodeOutputs:
        output = self.model.forward(inputs.input_ids, inputs.seq_lens, attentions[0])
        return DecodeOutputs(self.model.logits(output.hidden))


def decode_table(parts: EngineParts, forward: DecodeForward) -> GraphTable[DecodeInputs, DecodeOutputs]:
    """Plain decode of the target: one token per request."""
    return GraphTable(
        (DecodeInputs, DecodeOutputs),
        inputs=[
            *ids(1, "input_ids", "out_cache_loc", "req_pool_indices", "seq_lens"),
        ],
        outputs=[StaticBuffer("logits", 1, (forward.model.config.vocab_size,), parts.dtype)],
        declare=partial(parts.planner.declare_extend, q_len=1),
    )


class TargetWorker:
    """Runs the target over one KV pool: prefills eagerly, decodes captured batch sizes through a graph runner."""

    def __init__(
        self,
        parts: EngineParts,
        model: TargetModel,
        pool: KVPool,
        attention: AttentionBackend,
        req_to_token: ReqToToken,
        aux_layers: tuple[int, ...],
    ) -> None:
        self.model, self.pool, self.device = model, pool, parts.device
        self._planner, self._observers, self._seed = parts.planner, parts.observers, parts.config.seed
        self._attention, self._req_to_token, self._aux_layers = attention, req_to_token, aux_layers
        self._workspace = Scratch(parts.fill, parts.device)
        forward = DecodeForward(model, pool)
        self._decode = launcher(parts, forward, attention, self._workspace, decode_table(parts, forward))
        self._runners = [] if self._decode.runner is None else [self._decode.runner]
        capture(self._runners, self.device)

    def check_guards(self) -> list[GuardViolation]:
        """Overruns of the runner's static buffers since the last call."""
        return [violation for runner in self._runners for violation in runner.check_guards()]

    def damage_seen(self) -> list[GuardViolation]:
        """Overruns that reached the host before the device was lost."""
        return [violation for runner in self._runners for violation in runner.damage_seen()]

    def prefill(self, batch: PrefillBatch) -> tuple[Tensor, Tensor]:
        """Write the chunks' KV; the token sampled after each, int64 [B], and the features of every token, [Σext, F]."""
        maybe_detect_oob(batch.input_ids, 0, self.model.config.vocab_size, "target_prefill.input_ids")
        metadata = self._planner.extend(batch, self._workspace)
        attention = self._attention.bind(metadata, self.pool, batch.out_cache_loc)
        output = self.model.forward(batch.input_ids, batch.positions, attention, self._aux_layers)
        features = output.hidden if output.aux is None else output.aux
        if features.shape[0] != batch.input_ids.numel():
            raise AssertionError("target features must have one row per prompt token")
        self._observers.tell(
            PromptComputed, batch.requests, batch.prefix_lens_cpu, batch.extend_lens_cpu, output.hidden
        )
        logits = self.model.logits(output.hidden[batch.last_rows()])
        with grouped():
            self.pool.probe_written(batch.out_cache_loc)
            maybe_detect_nonfinite(logits, "target_prefill.logits")
            maybe_detect_nan(features, "target_prefill.hidden_states")
        logits = steered(logits, batch.requests, lambda _: [()])
        sampled = sample(logits, batch.requests, self._seed, drawing=batch.ends_prompt)
        self._observers.tell(TokensSampled, batch.requests, logits, sampled)
        return sampled, features

    def decode(self, requests: Sequence[Request]) -> list[int]:
        """One token for each request, whose newest token sits at position ``kv_len``."""
        lengths = tuple(request.kv_len for request in requests)
        newest = [request.output_ids[-1] for request in requests]
        rows, seq_lens, input_ids = upload([[r.row for r in requests], lengths, newest], self.device).unbind()
        maybe_detect_oob(input_ids, 0, self.model.config.vocab_size, "target_decode.input_ids")
        loc = self._req_to_token.table[rows, seq_lens].to(torch.int64)
        logits = self._decode.run(DecodeInputs(input_ids, loc, rows, seq_lens), lengths).logits
        with grouped():
            self.pool.probe_written(loc)
            maybe_detect_nonfinite(logits, "target_decode.logits")
        logits = steered(logits, requests, lambda _: [()])
        sampled = sample(logits, requests, self._seed)
        self._observers.tell(TokensSampled, requests, logits, sampled)
        return [token for (token,) in Readback(sampled.unsqueeze(1)).wait()]
