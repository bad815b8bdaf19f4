"""Stages 1 and 2: candidates that a draft loop selects, and the tree of them that the target verifies.

Selection 0 takes all K roots; selection i keeps the K best of K² continuations. Every candidate ever scored is numbered
in one list (K roots, then K² per selection); a tree is the best T - 1 of them, by the product of their path's
probabilities, so that a candidate's parent always ranks before it. Node 0 of the tree is the bonus token at position L;
node i > 0 is chosen candidate i - 1. Sources: EAGLE-2 (arXiv:2406.16858); SGLang ``select_top_k_tokens`` and
``organize_draft_results``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.config import SpeculativeConfig
from specdebug.engine.kernels.logits import argmax, softmax_top1, softmax_topk
from specdebug.engine.kernels.trees import build_tree


@dataclass(frozen=True)
class DraftCandidates:
    """The chosen T - 1 candidates, in candidate order (a parent before its children).

    parent_list: int64 [B, K(S-1)+1] ([B, 0] when S = 1): candidate that group g continues, -1 for the root.
    top_scores_index: int64 [B, T-1], candidate numbers, strictly ascending. draft_tokens: int64 [B, T-1], target ids.
    """

    parent_list: Tensor
    top_scores_index: Tensor
    draft_tokens: Tensor


@dataclass(frozen=True)
class Roots:
    """Selection 0. topk_p: float32 [B, K]. tokens: int64 [B, K], target ids. hidden: [B·K, Hd], what each branch's
    first forward reads beside its token."""

    topk_p: Tensor
    tokens: Tensor
    hidden: Tensor


Forward = Callable[[int, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""The draft forward that follows selection i, for ``(i, tokens, hidden, parents)``: logits [B·K, Vd], hidden [B·K, Hd].
tokens: int64 [B·K]. hidden: [B·K, Hd]. parents: int64 [B, K], the branches that ``hidden`` is of."""


def top_k_probs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Best k of softmax(logits [n, Vd]), of equals the first: float32 [n, k], descending, and ids int64 [n, k]."""
    return softmax_top1(logits) if k == 1 else softmax_topk(logits, k)


def per_branch(values: Tensor, topk: int) -> Tensor:
    """``repeat_interleave`` of values [B, ...] to [B·K, ...], at a third of its cost."""
    return values.unsqueeze(1).expand(-1, topk, *values.shape[1:]).flatten(0, 1)


class Selection:
    """S selections of K, and the tree of T nodes out of them. ``to_target_ids``: the draft model's."""

    def __init__(
        self,
        spec: SpeculativeConfig,
        target_vocab_size: int,
        to_target_ids: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> None:
        self.topk, self.num_steps, self.tree_size = spec.eagle_topk, spec.num_steps, spec.tree_size
        self.target_vocab_size = target_vocab_size
        self._to_target_ids = to_target_ids
        self._chain_parents = torch.arange(-1, self.num_steps - 1 if self.num_steps > 1 else -1, device=device)
        self._chain_order = torch.arange(self.num_steps, device=device)
        self._roots = torch.arange(-1, self.topk, device=device)
        self._branches = torch.arange(self.topk, device=device).unsqueeze(0)

    def branches(self, batch: int) -> Tensor:
        """int64 [B, K]: every branch itself."""
        return self._branches.expand(batch, -1)

    def grow(self, roots: Roots, forward: Forward) -> DraftCandidates:
        """Select from ``roots``, then S - 1 times from what a forward says of the branches kept."""
        if self.topk > 1:
            return self._tree(roots, forward)
        # no scores to compare: the tree is the chain itself
        batch, hidden, tokens = roots.tokens.shape[0], roots.hidden, roots.tokens.view(-1)
        chain, itself = [tokens], self.branches(batch)
        for step in range(self.num_steps - 1):
            logits, hidden = forward(step, tokens, hidden, itself)
            tokens = self._to_target_ids(argmax(logits))
            chain.append(tokens)
        return DraftCandidates(
            self._chain_parents.expand(batch, -1), self._chain_order.expand(batch, -1), torch.stack(chain, dim=1)
        )

    def _tree(self, roots: Roots, forward: Forward) -> DraftCandidates:
        batch, topk = roots.topk_p.shape
        beam_scores, beam_tokens, hidden = roots.topk_p, roots.tokens, roots.hidden
        scores, tokens = [beam_scores], [beam_tokens]
        parents = [self._roots.expand(batch, -1)]
        branch = self.branches(batch)
        first_row = torch.arange(0, batch * topk, topk, device=hidden.device).unsqueeze(1)
        for step in range(self.num_steps - 1):
            logits, hidden = forward(step, beam_tokens.view(-1), hidden, branch)
            probs, ids = top_k_probs(logits, topk)
            step_scores = (beam_scores.view(-1, 1) * probs).view(batch, -1)
            step_tokens = self._to_target_ids(ids).view(batch, -1)
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


@dataclass(frozen=True)
class VerifyTree:
    """tokens, positions: int64 [B, T]. mask: bool [B, T, T], [b, i, j] when j is i or an ancestor of i.

    retrieve_next_token, retrieve_next_sibling: int64 [B, T], first child and next sibling, best first, -1 for none.
    """

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    retrieve_next_token: Tensor
    retrieve_next_sibling: Tensor

    @property
    def links(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors along which a walk from the root goes."""
        return self.tokens, self.retrieve_next_token, self.retrieve_next_sibling

    def paths(self, b: int) -> list[list[int]]:
        """Of each node of request b, the drafts from behind the root to itself."""
        tokens, mask = self.tokens[b].tolist(), self.mask[b].tolist()
        return [[token for token, above in zip(tokens[1:], row[1:], strict=True) if above] for row in mask]


class TreeBuilder:
    """Builds trees of one shape. A chain's links and mask never change, so they are made once."""

    def __init__(self, *, topk: int, tree_size: int, device: torch.device) -> None:
        self.topk = topk
        self.tree_size = tree_size
        self._node = node = torch.arange(tree_size, device=device)
        self._chain_mask = node.unsqueeze(1) >= node
        self._chain_next = torch.where(node + 1 < tree_size, node + 1, -1)
        self._no_sibling = torch.full_like(node, -1)

    def build(self, candidates: DraftCandidates, bonus: Tensor, seq_lens: Tensor) -> VerifyTree:
        """bonus, seq_lens: int64 [B]."""
        tokens = torch.cat([bonus.unsqueeze(1), candidates.draft_tokens], dim=1)
        batch = tokens.shape[0]
        if self.topk == 1:
            return VerifyTree(
                tokens,
                seq_lens.unsqueeze(1) + self._node,
                self._chain_mask.expand(batch, -1, -1),
                self._chain_next.expand(batch, -1),
                self._no_sibling.expand(batch, -1),
            )
        links = build_tree(candidates.parent_list, candidates.top_scores_index, self.topk)
        with grouped():
            maybe_detect_oob(links.parent, 0, self.tree_size, "tree.parents")
            maybe_detect_oob(links.next_token, -1, self.tree_size, "tree.retrieve_next_token")
            maybe_detect_oob(links.next_sibling, -1, self.tree_size, "tree.retrieve_next_sibling")
        positions = seq_lens.unsqueeze(1) + links.depth
        return VerifyTree(tokens, positions, links.mask, links.next_token, links.next_sibling)
