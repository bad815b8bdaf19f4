"""One EAGLE iteration: draft, verify, commit, publish lengths, draft extend.

The target's output decides every emitted token; whatever the draft does wrong only costs accepted length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdebug.async_probe import (
    grouped,
    maybe_detect_nan,
    maybe_detect_nonfinite,
    maybe_detect_oob,
    maybe_detect_page_aligned,
)
from specdebug.engine import progress
from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.attention.planner import AttentionPlanner, DraftLayout, SequenceLayout
from specdebug.engine.attention.workspace import EagerWorkspace
from specdebug.engine.batch import PrefillBatch
from specdebug.engine.config import EngineConfig, SpeculativeConfig
from specdebug.engine.device import Readback, upload
from specdebug.engine.graph.draft_runner import DraftGraphRunner
from specdebug.engine.graph.extend_runner import ExtendForward, ExtendGraphRunner, ExtendInputs, ExtendOutputs
from specdebug.engine.graph.runner import GraphRunner, Planned
from specdebug.engine.graph.verify_runner import VerifyForward, VerifyGraphRunner, VerifyInputs, VerifyOutputs
from specdebug.engine.kernels.argmax import argmax
from specdebug.engine.memory.arena import GuardViolation
from specdebug.engine.memory.fill import FillPolicy, Scratch
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.memory.req_to_token import ReqToToken
from specdebug.engine.model.interface import DraftModel
from specdebug.engine.model.llama import TargetModel
from specdebug.engine.request import Request
from specdebug.engine.sampler import request_generator, target_probs
from specdebug.engine.speculative.accept import Acceptance, accept_greedy, accept_sampling
from specdebug.engine.speculative.cache_locs import DraftCacheLocs, assign_draft_cache_locs, verify_cache_locs
from specdebug.engine.speculative.commit import (
    Compacted,
    compact_accept_to_front,
    compact_chain,
    get_src_tgt_cache_loc,
)
from specdebug.engine.speculative.draft import DraftCandidates, DraftInputs, DraftLoop
from specdebug.engine.speculative.state import DraftState, DraftStateTable
from specdebug.engine.speculative.tree import TreeBuilder, VerifyTree


@dataclass(frozen=True)
class DraftAndTargetAttention:
    """Who attends for either model: their heads may differ."""

    draft: AttentionBackend
    target: AttentionBackend


@dataclass(frozen=True)
class Pools:
    """The two pools that share slot ids, and the table that maps positions to slots."""

    target: KVPool
    draft: KVPool
    req_to_token: ReqToToken


@dataclass(frozen=True)
class _Begun:
    """A decode step of ``requests`` up to its verify: drafted, and ``planned`` where a graph is to verify."""

    requests: tuple[Request, ...]
    tree: VerifyTree
    inputs: VerifyInputs
    planned: Planned[VerifyInputs] | None

    def serves(self, requests: Sequence[Request]) -> bool:
        """Whether it was made for these requests, in this order; a request equals nothing but itself."""
        return tuple(requests) == self.requests


class EagleWorker:
    """Speculation for one engine: owns the draft model's state, the runners and the draft pool's content."""

    def __init__(
        self,
        config: EngineConfig,
        spec: SpeculativeConfig,
        target: TargetModel,
        draft: DraftModel,
        pools: Pools,
        planner: AttentionPlanner,
        attention: DraftAndTargetAttention,
        *,
        dtype: torch.dtype,
        fill: FillPolicy,
        device: torch.device,
    ) -> None:
        self._spec = spec
        self._pools = pools
        self._planner = planner
        self._attention = attention
        self._page_size = config.page_size
        self._context_length = config.context_length
        self._seed = config.seed
        self._device = device
        self._vocab_size = target.config.vocab_size
        self._draft_model = draft
        self._scratch = Scratch(fill, device)
        self._workspace = EagerWorkspace(self._scratch)
        rows = config.max_running_requests
        self._state = DraftStateTable(
            rows, topk=spec.eagle_topk, hidden_size=draft.hidden_size, dtype=dtype, device=device
        )
        self._loop = DraftLoop(
            draft,
            pools.draft,
            topk=spec.eagle_topk,
            num_steps=spec.num_steps,
            tree_size=spec.tree_size,
            target_vocab_size=self._vocab_size,
        )
        self._tree_builder = TreeBuilder(topk=spec.eagle_topk, tree_size=spec.tree_size, device=device)
        self._verify_forward = VerifyForward(target, pools.target, draft.aux_layers, draft.target_feature_size)
        self._extend_forward = ExtendForward(draft, pools.draft, topk=spec.eagle_topk)
        self._draft_runner: DraftGraphRunner | None = None
        self._verify_runner: VerifyGraphRunner | None = None
        self._extend_runner: ExtendGraphRunner | None = None
        self._drafts_ahead = device.type == "cuda"  # a CPU has nothing to do meanwhile
        self._ahead: _Begun | None = None
        self._last_rows: tuple[tuple[int, ...], Tensor] | None = None
        if config.cuda_graph.enabled:
            guards = config.memory.guards
            graph = config.cuda_graph
            self._draft_runner = DraftGraphRunner(
                graph,
                self._loop,
                planner,
                attention.draft,
                num_rows=rows + 1,
                hidden_dtype=dtype,
                guards=guards,
                fill=fill,
                device=device,
            )
            self._verify_runner = VerifyGraphRunner(
                graph,
                self._verify_forward,
                planner,
                attention.target,
                tree_size=spec.tree_size,
                dtype=dtype,
                guards=guards,
                fill=fill,
                device=device,
            )
            self._extend_runner = ExtendGraphRunner(
                graph,
                self._extend_forward,
                planner,
                attention.draft,
                tree_size=spec.tree_size,
                target_vocab_size=self._vocab_size,
                dtype=dtype,
                guards=guards,
                fill=fill,
                device=device,
            )
            if device.type == "cuda":
                self._capture()

    def prefill(self, batch: PrefillBatch, next_ids: Tensor, features: Tensor) -> None:
        """Write the chunks' draft KV; after a final chunk keep what the first draft loop starts from.

        next_ids: int64 [B], the target's sample after each chunk. features: [Σext, F].
        """
        self._drop_ahead()  # a request may come back to other rows
        for request in batch.requests:
            self._prepare_cached_prefix(request)
        tail = self._tail_tokens(batch, next_ids)
        input_ids = torch.roll(batch.input_ids, -1)
        last = batch.last_rows()
        input_ids[last] = tail
        maybe_detect_oob(input_ids, 0, self._vocab_size, "draft_prefill.input_ids")
        metadata = self._planner.extend(batch.layout(), self._workspace)
        attention = self._attention.draft.bind(metadata, self._pools.draft, batch.out_cache_loc)
        hidden = self._draft_model.forward(input_ids, batch.positions, self._draft_model.project(features), attention)
        with grouped():
            self._pools.draft.probe_written(batch.out_cache_loc)
            maybe_detect_nan(hidden, "draft_prefill.hidden_states")
        start = self._extend_forward.read_out(hidden[last])
        rows = batch.req_pool_indices
        self._state.store_lengths(rows, batch.prefix_lens + batch.extend_lens, next_ids)
        self._store_draft(rows, start)

    def decode(self, requests: Sequence[Request]) -> list[list[int]]:
        """One iteration; the tokens each request gained, at least one."""
        lens_cpu = tuple(request.kv_len for request in requests)
        if self._ahead is not None and not self._ahead.serves(requests):
            self._drop_ahead()
        begun, self._ahead = self._ahead or self._begin(requests, lens_cpu), None
        rows, seq_lens, out_cache_loc = begun.inputs.req_pool_indices, begun.inputs.seq_lens, begun.inputs.out_cache_loc
        batch = SequenceLayout(rows, seq_lens, lens_cpu)
        verified = self._verify(batch, begun)
        acceptance = self._accept(requests, begun.tree, verified.logits)
        acceptance.check(self._spec.tree_size, self._vocab_size)
        self._commit_kv(acceptance, out_cache_loc)
        compacted = self._compact(acceptance, verified.features)
        predict, lengths = compacted.predict.view(len(requests), -1), compacted.accept_lengths.unsqueeze(1)
        accepted = Readback(torch.cat([lengths, predict], dim=1))
        bonus = predict.gather(1, lengths - 1)
        self._state.store_lengths(rows, seq_lens + compacted.accept_lengths, bonus.squeeze(1))
        # Queued behind the read-back: a GPU extends, drafts for the next step and plans its verify while the host looks
        # at the tokens; then all that the host has left to do is to launch it. This needs no more than the device
        # knows; its slots are there, because a request holds them for two steps; and if the next batch is another one,
        # all that is lost is the work.
        self._draft_extend(batch, compacted, out_cache_loc)
        self._ahead = self._begin_ahead(requests, lens_cpu)
        return [row[1 : row[0] + 1] for row in accepted.wait()]

    def _begin_ahead(self, requests: Sequence[Request], lens_cpu: tuple[int, ...]) -> _Begun | None:
        """Begin on a GPU the step after this one, of whose lengths the host knows the most they can be: at least one
        token is accepted, and at most a whole tree.

        None where one could be past the context: its request ends with this step, and tables and buffers may be too.
        """
        nodes = self._spec.tree_size
        longest = tuple(length + nodes for length in lens_cpu)
        if not self._drafts_ahead or max(longest) > self._context_length:
            return None
        return self._begin(requests, longest, slack=len(longest) * (nodes - 1))

    def _drop_ahead(self) -> None:
        """What was begun will not go on."""
        if self._verify_runner is not None and self._ahead is not None and self._ahead.planned is not None:
            self._verify_runner.abandon()
        self._ahead = None

    def _begin(self, requests: Sequence[Request], lens_cpu: tuple[int, ...], *, slack: int = 0) -> _Begun:
        """Draft from what the device knows of ``requests``, and prepare the verify.

        Their lengths are at most ``lens_cpu``, and all together at most ``slack`` less.
        """
        rows = self._rows_of(requests)
        state = self._state.gather(rows)
        slots = verify_cache_locs(self._pools.req_to_token.table, rows, state.seq_lens, self._spec.tree_size)
        locs = self._draft_locs(rows, state.seq_lens, slots)
        with grouped():
            maybe_detect_oob(state.bonus, 0, self._vocab_size, "draft.bonus")
            maybe_detect_oob(locs.out_cache_loc, 0, self._pools.draft.size, "draft.out_cache_loc")
        candidates = self._draft(rows, state, locs, lens_cpu)
        tree = self._tree_builder.build(candidates, state.bonus, state.seq_lens)
        input_ids = tree.tokens.reshape(-1)
        maybe_detect_oob(input_ids, 0, self._vocab_size, "verify.input_ids")
        inputs = VerifyInputs(input_ids, tree.positions.reshape(-1), slots, tree.mask, rows, state.seq_lens)
        planned = None
        if self._verify_runner is not None and self._verify_runner.can_run(len(requests)):
            planned = self._verify_runner.prepare(inputs, lens_cpu, slack=slack)
        return _Begun(tuple(requests), tree, inputs, planned)

    def _rows_of(self, requests: Sequence[Request]) -> Tensor:
        """int64 [B]; the last batch's tensor when it had the same rows, as decode batches mostly do."""
        rows = tuple(request.row for request in requests)
        if self._last_rows is None or self._last_rows[0] != rows:
            self._last_rows = rows, upload(rows, self._device)
        return self._last_rows[1]

    def _capture(self) -> None:
        """Turn the runners into CUDA graphs. They run one after another, so they share a pool."""
        pool = torch.cuda.graph_pool_handle()
        for name, runner in (
            ("verify", self._verify_runner),
            ("draft", self._draft_runner),
            ("draft extend", self._extend_runner),
        ):
            if runner is not None:
                progress.report(f"capturing {name} graphs, batch {', '.join(map(str, runner.capture_bs))}")
                runner.capture(pool)

    def check_guards(self) -> list[GuardViolation]:
        """Overruns of any runner's static buffers since the last call."""
        return [violation for runner in self._runners for violation in runner.check_guards()]

    def damage_seen(self) -> list[GuardViolation]:
        """Overruns that reached the host before the device was lost."""
        return [violation for runner in self._runners for violation in runner.damage_seen()]

    @property
    def _runners(self) -> list[GraphRunner[Any]]:
        runners: tuple[GraphRunner[Any] | None, ...] = (self._draft_runner, self._verify_runner, self._extend_runner)
        return [runner for runner in runners if runner is not None]

    def _prepare_cached_prefix(self, request: Request) -> None:
        """Under ``zero_fill``: a matched prefix may lack draft KV, and unwritten memory may hold anything."""
        slots = request.unwritten_draft_slots
        if slots is not None and slots.numel():
            self._pools.draft.zero(slots)
        request.unwritten_draft_slots = None

    def _tail_tokens(self, batch: PrefillBatch, next_ids: Tensor) -> Tensor:
        """The token after each chunk: the sampled one; on a non-final chunk the prompt's own next token."""
        return torch.where(batch.final, next_ids, batch.next_prompt_ids)

    def _draft_locs(self, rows: Tensor, seq_lens: Tensor, verify_locs: Tensor) -> DraftCacheLocs:
        """Slots of the draft loop. A chain continues the row, so they are the first ones of the verify."""
        topk, steps = self._spec.eagle_topk, self._spec.num_steps
        if topk == 1:
            return DraftCacheLocs(verify_locs.view(rows.numel(), -1)[:, :steps], None, None)
        return assign_draft_cache_locs(
            self._pools.req_to_token.table,
            rows,
            seq_lens,
            topk=topk,
            num_steps=steps,
            page_size=self._page_size,
        )

    def _draft(
        self, rows: Tensor, state: DraftState, locs: DraftCacheLocs, lens_cpu: tuple[int, ...]
    ) -> DraftCandidates:
        topk = self._spec.eagle_topk
        if locs.dup_src is not None and locs.dup_tgt is not None:
            tail = state.seq_lens - state.seq_lens % self._page_size
            tail_start = self._pools.req_to_token.table[rows, tail]
            maybe_detect_page_aligned(tail_start, self._page_size, "draft.prefix_tail")
            self._pools.draft.move_kv_cache(locs.dup_tgt, locs.dup_src)
        positions = state.seq_lens.repeat_interleave(topk) if topk > 1 else state.seq_lens
        inputs = DraftInputs(
            topk_p=state.topk_p,
            topk_index=state.topk_index,
            hidden_states=state.hidden_states,
            req_pool_indices=rows,
            seq_lens=state.seq_lens,
            positions=positions,
            out_cache_loc=locs.out_cache_loc,
        )
        if self._draft_runner is not None and self._draft_runner.can_run(rows.numel()):
            return self._draft_runner.replay(inputs, lens_cpu)
        layout = DraftLayout(rows, state.seq_lens, positions, locs.out_cache_loc, lens_cpu)
        attentions = [
            self._attention.draft.bind(plan, self._pools.draft, loc)
            for plan, loc in zip(
                self._planner.draft_decode(layout, self._workspace), self._loop.locs(inputs), strict=True
            )
        ]
        return self._loop.run(inputs, attentions)

    def _verify(self, batch: SequenceLayout, begun: _Begun) -> VerifyOutputs:
        inputs = begun.inputs
        if self._verify_runner is not None and begun.planned is not None:
            outputs = self._verify_runner.launch(begun.planned, batch.seq_lens_cpu)
        else:
            metadata = self._planner.verify(batch, inputs.tree_mask, self._workspace)
            attention = self._attention.target.bind(metadata, self._pools.target, inputs.out_cache_loc)
            outputs = self._verify_forward.run(inputs, attention)
        with grouped():
            self._pools.target.probe_written(inputs.out_cache_loc)
            maybe_detect_nonfinite(outputs.logits, "verify.logits")
            maybe_detect_nan(outputs.features, "verify.hidden_states")
        return outputs

    def _accept(self, requests: Sequence[Request], tree: VerifyTree, logits: Tensor) -> Acceptance:
        batch, nodes = tree.tokens.shape
        best = argmax(logits).view(batch, nodes)
        if all(request.sampling.greedy for request in requests):
            return accept_greedy(tree, best, self._spec.num_steps)
        rows = logits.view(batch, nodes, -1)
        probs = torch.zeros(rows.shape, dtype=torch.float32, device=logits.device)
        coins = torch.zeros(batch, self._spec.num_steps + 2)
        for b, request in enumerate(requests):
            if request.sampling.greedy:
                probs[b].scatter_(1, best[b].unsqueeze(1), 1.0)
            else:
                probs[b] = target_probs(rows[b], request.sampling)
                coins[b] = torch.rand(coins.shape[1], generator=request_generator(request, self._seed))
        return accept_sampling(
            tree,
            probs,
            upload(coins.numpy(), self._device),
            self._spec.num_steps,
            threshold_single=self._spec.threshold_single,
            threshold_acc=self._spec.threshold_acc,
        )

    def _commit_kv(self, acceptance: Acceptance, out_cache_loc: Tensor) -> None:
        """Bring accepted nodes' target KV to the front. A chain's already is."""
        if self._spec.eagle_topk == 1:
            return
        plan = get_src_tgt_cache_loc(acceptance, out_cache_loc, self._spec.tree_size, self._scratch)
        self._pools.target.move_kv_cache(plan.tgt_loc, plan.src_loc)

    def _compact(self, acceptance: Acceptance, features: Tensor) -> Compacted:
        if self._spec.eagle_topk == 1:
            return compact_chain(acceptance, features)
        return compact_accept_to_front(acceptance, features, self._spec.tree_size)

    def _draft_extend(self, batch: SequenceLayout, compacted: Compacted, out_cache_loc: Tensor) -> None:
        nodes = self._spec.tree_size
        with grouped():
            maybe_detect_oob(compacted.predict, 0, self._vocab_size, "draft_extend.input_ids")
            maybe_detect_nan(compacted.features, "draft_extend.features")
        inputs = ExtendInputs(
            input_ids=compacted.predict,
            positions=(batch.seq_lens.unsqueeze(1) + torch.arange(nodes, device=self._device)).view(-1),
            out_cache_loc=out_cache_loc,
            features=compacted.features,
            accept_lengths=compacted.accept_lengths,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
        )
        if self._extend_runner is not None and self._extend_runner.can_run(len(batch.seq_lens_cpu)):
            start = self._extend_runner.replay(inputs, batch.seq_lens_cpu)
        else:
            metadata = self._planner.extend_uniform(batch, nodes, self._workspace)
            attention = self._attention.draft.bind(metadata, self._pools.draft, out_cache_loc)
            start = self._extend_forward.run(inputs, nodes, attention)
        with grouped():
            self._pools.draft.probe_written(out_cache_loc)
            self._store_draft(batch.req_pool_indices, start)

    def _store_draft(self, rows: Tensor, start: ExtendOutputs) -> None:
        with grouped():
            maybe_detect_nan(start.topk_p, "draft_extend.topk_p")
            maybe_detect_oob(start.topk_index, 0, self._draft_model.vocab_size, "draft_extend.topk_index")
        self._state.store_draft(rows, start.topk_p, start.topk_index, start.hidden_states)
