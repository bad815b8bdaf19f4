"""FlashInfer's plan for models with latent attention: the lists of its other plan, and draft buffers of its own.

Upstream has a draft backend for each kind of model (``FlashInferMLAMultiStepDraftBackend`` is this one's), which size
their buffers apart. Latents are for long contexts, so rows that no forward reads are left out here.
"""

import torch
from torch import Tensor

from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.textbook.attention.flashinfer import FlashInferPlanner
from specdebug.engine.textbook.attention.planner import Workspace, assert_fits


class FlashInferMLAPlanner(FlashInferPlanner):
    """kv_indptr / kv_indices (int32); of a draft, rows for its S - 1 forwards alone."""

    def declare_draft(self, layout: ArenaLayout, max_bs: int) -> None:
        width = max_bs * self.topk * self.max_kv_len
        layout.add("draft.kv_indices", (self._draft_rows, width), self.index_dtype)
        layout.add("draft.kv_indptr", (self._draft_rows, max_bs * self.topk + 1), torch.int32)

    def _draft_buffers(self, needed: int, rows: int, workspace: Workspace) -> tuple[Tensor, Tensor]:
        kv_indices = workspace.take("draft.kv_indices", (self._draft_rows, needed), self.index_dtype)
        kv_indptr = workspace.take("draft.kv_indptr", (self._draft_rows, rows + 1), torch.int32)
        assert_fits(needed, kv_indices.shape[1], "attention.draft.plan", "a kv_indices row")
        return kv_indices, kv_indptr

    @property
    def _draft_rows(self) -> int:
        """One for each forward; a chain of one step has none, and a row that is never read."""
        return max(self.num_steps - 1, 1)
