"""The draft loop: S selections and S - 1 draft forwards grow candidates from the last accepted position.

Selection 0 takes all K roots; selection i keeps the K best of K² continuations. Every candidate ever scored
is numbered in one list (K roots, then K² per selection); a tree is the best T - 1 of them. A path's score is
the product of its probabilities and never grows, so a candidate's parent always ranks before it.

Sources: EAGLE-2 (arXiv:2406.16858) for the dynamic tree; SGLang ``select_top_k_tokens`` and
``organize_draft_results``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.async_probe import maybe_detect_inf, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.attention.executor import TorchAttention
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import DraftModel


@dataclass(frozen=True)
class DraftInputs:
    """What the loop starts from.

    topk_p: float32 [B, K], topk_index: int64 [B, K] (draft-vocabulary ids), hidden_states: [B, Hd]: the last
    draft extend's output at position L - 1. seq_lens, req_pool_indices: int64 [B]. positions: int64 [B·K], L
    per branch. out_cache_loc: int64 [B·K, S].
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
    top_scores_index: int64 [B, T-1] candidate numbers, strictly ascending. draft_tokens: int64 [B, T-1],
    target ids.
    """

    parent_list: Tensor
    top_scores_index: Tensor
    draft_tokens: Tensor


def top_k_probs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Best k of softmax(logits [n, Vd]): probabilities float32 [n, k], descending, and ids int64 [n, k]."""
    probs = torch.softmax(logits, dim=-1, dtype=torch.float32)
    if k == 1:
        return probs.max(dim=-1, keepdim=True)
    return torch.topk(probs, k, dim=-1)


class DraftLoop:
    """Runs the loop over one draft model and its pool."""

    def __init__(
        self,
        model: DraftModel,
        pool: KVPool,
        *,
        topk: int,
        num_steps: int,
        tree_size: int,
        target_vocab_size: int,
    ) -> None:
        self.model = model
        self.target_vocab_size = target_vocab_size
        self.pool = pool
        self.topk = topk
        self.num_steps = num_steps
        self.tree_size = tree_size

    def run(self, inputs: DraftInputs, plans: list[Metadata]) -> DraftCandidates:
        """S - 1 forwards under ``plans``; forward i writes draft KV to column i of ``out_cache_loc``."""
        if self.topk == 1:
            return self._run_chain(inputs, plans)
        return self._run_tree(inputs, plans)

    def _forward(
        self, step: int, tokens: Tensor, hidden: Tensor, inputs: DraftInputs, plan: Metadata
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One draft forward at positions L + step: probabilities and draft ids [B·K, K], hidden [B·K, Hd]."""
        positions = inputs.positions + step
        maybe_detect_oob(
            positions.view(-1, self.topk),
            step,
            step + 1,
            "draft.forward.positions",
            relative_to=inputs.seq_lens.unsqueeze(1),
        )
        maybe_detect_oob(tokens, 0, self.target_vocab_size, "draft.forward.input_ids")
        attention = TorchAttention(plan, self.pool, inputs.out_cache_loc[:, step])
        hidden = self.model.forward(tokens, positions, hidden, attention)
        logits = self.model.logits(hidden)
        maybe_detect_nan(logits, "draft.forward.logits")
        maybe_detect_inf(logits, "draft.forward.logits")
        probs, ids = top_k_probs(logits, self.topk)
        return probs, ids, hidden

    def _run_chain(self, inputs: DraftInputs, plans: list[Metadata]) -> DraftCandidates:
        """topk 1: no scores to compare, the tree is the chain itself."""
        batch = inputs.topk_index.shape[0]
        device = inputs.topk_index.device
        hidden = inputs.hidden_states
        tokens = self.model.to_target_ids(inputs.topk_index)
        chain = [tokens]
        for step in range(self.num_steps - 1):
            _, ids, hidden = self._forward(step, tokens.view(-1), hidden, inputs, plans[step])
            tokens = self.model.to_target_ids(ids)
            chain.append(tokens)
        parents = torch.arange(-1, self.num_steps - 1, device=device)
        if self.num_steps == 1:
            parents = parents[:0]
        order = torch.arange(self.num_steps, device=device)
        return DraftCandidates(
            parents.expand(batch, -1), order.expand(batch, -1), torch.cat(chain, dim=1)
        )

    def _run_tree(self, inputs: DraftInputs, plans: list[Metadata]) -> DraftCandidates:
        topk = self.topk
        batch = inputs.topk_p.shape[0]
        device = inputs.topk_p.device
        beam_scores = inputs.topk_p
        beam_tokens = self.model.to_target_ids(inputs.topk_index)
        hidden = inputs.hidden_states.repeat_interleave(topk, dim=0)
        scores, tokens = [beam_scores], [beam_tokens]
        parents = [torch.arange(-1, topk, device=device).expand(batch, -1)]
        first_row = torch.arange(0, batch * topk, topk, device=device).unsqueeze(1)
        for step in range(self.num_steps - 1):
            probs, ids, hidden = self._forward(step, beam_tokens.reshape(-1), hidden, inputs, plans[step])
            step_scores = (beam_scores.unsqueeze(2) * probs.view(batch, topk, topk)).view(batch, -1)
            step_tokens = self.model.to_target_ids(ids).view(batch, -1)
            scores.append(step_scores)
            tokens.append(step_tokens)
            beam_scores, choice = torch.topk(step_scores, topk, dim=-1)
            maybe_detect_oob(choice, 0, topk * topk, "draft.select.choice")
            beam_tokens = step_tokens.gather(1, choice)
            hidden = hidden[(first_row + choice // topk).view(-1)]
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
