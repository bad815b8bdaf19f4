"""Stage 2, tree: from chosen candidates to the tree that the target verifies.

Node 0 is the bonus token at position L; node i > 0 is chosen candidate i - 1. The tree is an ancestor mask for
attention, and first-child / next-sibling links for acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_oob
from specdebug.engine.kernels.build_tree import build_tree
from specdebug.engine.speculative.selection import DraftCandidates


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
