"""From chosen candidates to the tree that the target verifies.

Node 0 is the bonus token at position L; node i > 0 is chosen candidate i - 1. The tree is given both ways the
rest needs it: an ancestor mask for attention and first-child / next-sibling links for acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.async_probe import maybe_detect_oob
from specdebug.engine.speculative.draft import DraftCandidates


@dataclass(frozen=True)
class VerifyTree:
    """tokens, positions: int64 [B, T]. mask: bool [B, T, T], [b, i, j] when j is i or an ancestor of i.

    retrieve_next_token, retrieve_next_sibling: int64 [B, T], first child and next sibling of a node, -1 for
    none. Siblings are linked best first.
    """

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    retrieve_next_token: Tensor
    retrieve_next_sibling: Tensor


class TreeBuilder:
    """Builds trees of one shape. A chain's links and mask never change, so they are made once."""

    def __init__(self, *, topk: int, num_steps: int, tree_size: int, device: torch.device) -> None:
        self.topk = topk
        self.tree_size = tree_size
        # ceil(log2(depth)) squarings close the ancestor relation
        self._squarings = max(num_steps - 1, 0).bit_length()
        node = torch.arange(tree_size, device=device)
        self._node = node
        self._chain_mask = node.unsqueeze(1) >= node
        self._chain_next = torch.where(node + 1 < tree_size, node + 1, -1)
        self._no_sibling = torch.full_like(node, -1)
        self._identity = torch.eye(tree_size, device=device)
        self._after = node.unsqueeze(0) > node.unsqueeze(1)

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
        parent = self._parents(candidates)
        mask = self._ancestors(parent)
        positions = seq_lens.unsqueeze(1) + mask.sum(dim=-1) - 1
        child, sibling = self._links(parent)
        maybe_detect_oob(child, -1, self.tree_size, "tree.retrieve_next_token")
        maybe_detect_oob(sibling, -1, self.tree_size, "tree.retrieve_next_sibling")
        return VerifyTree(tokens, positions, mask, child, sibling)

    def _parents(self, candidates: DraftCandidates) -> Tensor:
        """Tree node of each chosen candidate's parent: int64 [B, T-1].

        Ancestor closure (a parent is always chosen too) makes the search exact.
        """
        chosen = candidates.top_scores_index
        if candidates.parent_list.shape[1] == 0:
            return torch.zeros_like(chosen)
        parent_candidate = candidates.parent_list.gather(1, chosen // self.topk)
        found = torch.searchsorted(chosen.contiguous(), parent_candidate)
        parent = torch.where(parent_candidate < 0, 0, found + 1)
        maybe_detect_oob(parent, 0, self.tree_size, "tree.parents")
        return parent.clamp(max=self.tree_size - 1)

    def _ancestors(self, parent: Tensor) -> Tensor:
        batch, nodes = parent.shape[0], self.tree_size
        reach = self._identity.expand(batch, nodes, nodes).clone()
        reach[:, 1:].scatter_(2, parent.unsqueeze(2), 1.0)
        for _ in range(self._squarings):
            reach = torch.bmm(reach, reach).clamp_(max=1.0)
        return reach > 0

    def _links(self, parent: Tensor) -> tuple[Tensor, Tensor]:
        full = torch.cat([parent.new_full((parent.shape[0], 1), -1), parent], dim=1)
        is_child = full.unsqueeze(1) == self._node.view(1, -1, 1)
        same = (full.unsqueeze(1) == full.unsqueeze(2)) & self._after
        return self._first(is_child), self._first(same)

    @staticmethod
    def _first(flags: Tensor) -> Tensor:
        """Index of the first set flag of the last dimension, -1 when none is."""
        value, index = flags.to(torch.int8).max(dim=-1)
        return torch.where(value > 0, index, -1)
