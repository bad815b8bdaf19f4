"""Stage 1, draft: S selections and S - 1 draft forwards grow candidates from the last accepted position.

Selection 0 takes all K roots; selection i keeps the K best of K² continuations. Every candidate ever scored
is numbered in one list (K roots, then K² per selection); a tree is the best T - 1 of them. A path's score is
the product of its probabilities and never grows, so a candidate's parent always ranks before it.

Sources: EAGLE-2 (arXiv:2406.16858); SGLang ``select_top_k_tokens`` and ``organize_draft_results``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdebug.async_probe import (
    grouped,
    maybe_detect_nan,
    maybe_detect_nonfinite,
    maybe_detect_oob,
    maybe_detect_page_aligned,
)
from specdebug.engine.attention.planner import DraftLayout
from specdebug.engine.attention.workspace import Workspace
from specdebug.engine.kernels.argmax import argmax, softmax_top1
from specdebug.engine.kernels.cache_locs import DraftCacheLocs, assign_draft_cache_locs
from specdebug.engine.kernels.softmax_topk import softmax_topk
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import DraftModel, LayerAttention
from specdebug.engine.observer import DraftForward, Observers
from specdebug.engine.speculative.protocol import WorkerParts
from specdebug.engine.speculative.state import DraftState

if TYPE_CHECKING:
    from specdebug.engine.graph.draft_runner import DraftGraphRunner


@dataclass(frozen=True)
class DraftInputs:
    """topk_p: float32 [B, K], topk_index: int64 [B, K] (draft-vocabulary ids), hidden_states: [B, Hd]: the last draft
    extend's output at position L - 1. seq_lens, req_pool_indices: int64 [B]. positions: int64 [B·K], L per branch.
    out_cache_loc: int64 [B·K, S].
    """

    topk_p: Tensor
    topk_index: Tensor
    hidden_states: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor
    positions: Tensor
    out_cache_loc: Tensor


@dataclass(frozen=True)
class DraftCandidates:
    """The chosen T - 1 candidates, in candidate order (a parent before its children).

    parent_list: int64 [B, K(S-1)+1] ([B, 0] when S = 1): candidate that group g continues, -1 for the root.
    top_scores_index: int64 [B, T-1], candidate numbers, strictly ascending. draft_tokens: int64 [B, T-1], target ids.
    """

    parent_list: Tensor
    top_scores_index: Tensor
    draft_tokens: Tensor


def top_k_probs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Best k of softmax(logits [n, Vd]), of equals the first: float32 [n, k], descending, and ids int64 [n, k]."""
    return softmax_top1(logits) if k == 1 else softmax_topk(logits, k)


def _per_branch(values: Tensor, topk: int) -> Tensor:
    """``repeat_interleave`` of values [B, ...] to [B·K, ...], at a third of its cost."""
    return values.unsqueeze(1).expand(-1, topk, *values.shape[1:]).flatten(0, 1)


class DraftLoop:
    """The loop over one draft model and its pool."""

    def __init__(
        self,
        model: DraftModel,
        pool: KVPool,
        *,
        topk: int,
        num_steps: int,
        tree_size: int,
        target_vocab_size: int,
        observers: Observers,
    ) -> None:
        self.model = model
        self._observers = observers
        self.target_vocab_size = target_vocab_size
        self.pool = pool
        self.topk = topk
        self.num_steps = num_steps
        self.tree_size = tree_size
        device = pool.device
        self._chain_parents = torch.arange(-1, num_steps - 1 if num_steps > 1 else -1, device=device)
        self._chain_order = torch.arange(num_steps, device=device)
        self._roots = torch.arange(-1, topk, device=device)
        self._branches = torch.arange(topk, device=device).unsqueeze(0)

    def locs(self, inputs: DraftInputs) -> list[Tensor]:
        """Slots that each forward writes, int64 [B·K]: column i of ``out_cache_loc`` for forward i."""
        return list(inputs.out_cache_loc[:, : self.num_steps - 1].unbind(1))

    def run(self, inputs: DraftInputs, attentions: Sequence[LayerAttention]) -> DraftCandidates:
        """S - 1 forwards, each under its own one of ``attentions``."""
        grow = self._run_chain if self.topk == 1 else self._run_tree
        candidates = grow(inputs, attentions)
        if attentions:
            self.pool.probe_written(inputs.out_cache_loc[:, : self.num_steps - 1])
        return candidates

    def _forward(
        self,
        step: int,
        tokens: Tensor,
        hidden: Tensor,
        inputs: DraftInputs,
        lengths: Tensor,
        parents: Tensor,
        attention: LayerAttention,
    ) -> tuple[Tensor, Tensor]:
        """One draft forward at positions L + step: logits [B·K, Vd], hidden [B·K, Hd]. lengths: int64 [B·K], L of each
        branch, from ``seq_lens`` and not from ``positions``. parents: int64 [B, K], branches that ``hidden`` is of."""
        positions = inputs.positions + step
        with grouped():
            maybe_detect_oob(positions, step, step + 1, "draft.forward.positions", relative_to=lengths)
            maybe_detect_oob(tokens, 0, self.target_vocab_size, "draft.forward.input_ids")
        hidden = self.model.forward(tokens, positions, hidden, attention)
        logits = self.model.logits(hidden)
        maybe_detect_nonfinite(logits, "draft.forward.logits")
        self._observers.draft_forward(DraftForward(step, tokens, parents.reshape(-1), logits))
        return logits, hidden

    def _run_chain(self, inputs: DraftInputs, attentions: Sequence[LayerAttention]) -> DraftCandidates:
        """topk 1: no scores to compare, the tree is the chain itself."""
        batch, hidden = inputs.topk_index.shape[0], inputs.hidden_states
        tokens = self.model.to_target_ids(inputs.topk_index.view(-1))
        chain, itself = [tokens], self._branches.expand(batch, -1)
        for step in range(self.num_steps - 1):
            logits, hidden = self._forward(step, tokens, hidden, inputs, inputs.seq_lens, itself, attentions[step])
            tokens = self.model.to_target_ids(argmax(logits))
            chain.append(tokens)
        return DraftCandidates(
            self._chain_parents.expand(batch, -1), self._chain_order.expand(batch, -1), torch.stack(chain, dim=1)
        )

    def _run_tree(self, inputs: DraftInputs, attentions: Sequence[LayerAttention]) -> DraftCandidates:
        batch, topk = inputs.topk_p.shape
        beam_scores, beam_tokens = inputs.topk_p, self.model.to_target_ids(inputs.topk_index)
        hidden = _per_branch(inputs.hidden_states, topk)
        lengths = _per_branch(inputs.seq_lens, topk)
        scores, tokens = [beam_scores], [beam_tokens]
        parents = [self._roots.expand(batch, -1)]
        branch = self._branches.expand(batch, -1)
        first_row = torch.arange(0, batch * topk, topk, device=hidden.device).unsqueeze(1)
        for step in range(self.num_steps - 1):
            beam = beam_tokens.view(-1)
            logits, hidden = self._forward(step, beam, hidden, inputs, lengths, branch, attentions[step])
            probs, ids = top_k_probs(logits, topk)
            step_scores = (beam_scores.view(-1, 1) * probs).view(batch, -1)
            step_tokens = self.model.to_target_ids(ids).view(batch, -1)
            scores.append(step_scores)
            tokens.append(step_tokens)
            beam_scores, choice = torch.topk(step_scores, topk, dim=-1)
            maybe_detect_oob(choice, 0, topk * topk, "draft.select.choice")
            beam_tokens = step_tokens.gather(1, choice)
            branch = choice // topk
            hidden = hidden.index_select(0, (first_row + branch).view(-1))
            if step < self.num_steps - 2:
                parents.append(choice + (topk + topk * topk * step))
        return self._organize(torch.cat(scores, dim=1), torch.cat(tokens, dim=1), torch.cat(parents, dim=1))

    def _organize(self, scores: Tensor, tokens: Tensor, parents: Tensor) -> DraftCandidates:
        """Best T - 1 candidates. The sort is stable: a child tied with its parent must not outrank it."""
        maybe_detect_nan(scores, "draft.organize.scores")
        order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
        chosen = order[:, : self.tree_size - 1].sort(dim=-1).values
        maybe_detect_oob(chosen, 0, scores.shape[1], "draft.organize.top_scores_index")
        draft_tokens = tokens.gather(1, chosen)
        maybe_detect_oob(draft_tokens, 0, self.target_vocab_size, "draft.organize.draft_tokens")
        parent_list = parents[:, :0] if self.num_steps == 1 else parents
        return DraftCandidates(parent_list, chosen, draft_tokens)


@dataclass(frozen=True, eq=False)
class DraftStage:
    """Drafts for a batch from the state of the last step, into slots that its requests hold in reserve."""

    parts: WorkerParts
    loop: DraftLoop
    runner: DraftGraphRunner | None
    workspace: Workspace

    def run(self, rows: Tensor, state: DraftState, verify_slots: Tensor, lens_cpu: tuple[int, ...]) -> DraftCandidates:
        """rows: int64 [B]. verify_slots: int64 [B·T]. Lengths are at most ``lens_cpu``."""
        return self.run_on(rows, state, self._slots(rows, state.seq_lens, verify_slots), lens_cpu)

    def run_on(
        self, rows: Tensor, state: DraftState, locs: DraftCacheLocs, lens_cpu: tuple[int, ...]
    ) -> DraftCandidates:
        """:meth:`run` on slots that are known."""
        parts, topk = self.parts, self.parts.spec.eagle_topk
        with grouped():
            maybe_detect_oob(state.bonus, 0, parts.vocab_size, "draft.bonus")
            maybe_detect_oob(locs.out_cache_loc, 0, parts.pools.draft.size, "draft.out_cache_loc")
        self._copy_prefix_tails(rows, state.seq_lens, locs)
        positions = state.seq_lens.repeat_interleave(topk) if topk > 1 else state.seq_lens
        inputs = DraftInputs(
            state.topk_p, state.topk_index, state.hidden_states, rows, state.seq_lens, positions, locs.out_cache_loc
        )
        if self.runner is not None and self.runner.can_run(rows.numel()):
            return self.runner.replay(inputs, lens_cpu)
        parts.observers.launched("draft", rows.numel(), None)
        layout = DraftLayout(rows, state.seq_lens, positions, locs.out_cache_loc, lens_cpu)
        plans = parts.planner.draft_decode(layout, self.workspace)
        attentions = [
            parts.attention.draft.bind(plan, parts.pools.draft, loc)
            for plan, loc in zip(plans, self.loop.locs(inputs), strict=True)
        ]
        return self.loop.run(inputs, attentions)

    def _slots(self, rows: Tensor, seq_lens: Tensor, verify_slots: Tensor) -> DraftCacheLocs:
        """Slots of the draft loop. A chain continues the row, so they are the first ones of the verify."""
        spec = self.parts.spec
        if spec.eagle_topk == 1:
            return DraftCacheLocs(verify_slots.view(rows.numel(), -1)[:, : spec.num_steps], None, None)
        return assign_draft_cache_locs(
            self.parts.pools.req_to_token.table,
            rows,
            seq_lens,
            topk=spec.eagle_topk,
            num_steps=spec.num_steps,
            page_size=self.parts.config.page_size,
        )

    def _copy_prefix_tails(self, rows: Tensor, seq_lens: Tensor, locs: DraftCacheLocs) -> None:
        """Give every branch a copy of the page that the prefix ends in, where branches own whole pages."""
        if locs.dup_src is None or locs.dup_tgt is None:
            return
        pools, page_size = self.parts.pools, self.parts.config.page_size
        tail_start = pools.req_to_token.table[rows, seq_lens - seq_lens % page_size]
        maybe_detect_page_aligned(tail_start, page_size, "draft.prefix_tail")
        pools.draft.move_kv_cache(locs.dup_tgt, locs.dup_src)
