"""Triton's plan: FlashInfer's lists with int64 indices, and split-KV decode chosen by the planner."""

import torch
from torch import Tensor

from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.textbook.attention.flashinfer import FlashInferPlanner
from specdebug.engine.textbook.attention.planner import Workspace

_KEYS_PER_SPLIT = {"cpu": 512, "cuda": 64}
"""Each split has a program of its own on a GPU, which has room for many; a CPU attends them one after another."""
_MAX_SPLITS = {"cpu": 8, "cuda": 64}


class TritonPlanner(FlashInferPlanner):
    """kv_indptr / kv_indices (int64) and num_kv_splits (int32) for single-query batches."""

    index_dtype = torch.int64

    def declare_extend(self, layout: ArenaLayout, max_bs: int, q_len: int) -> None:
        super().declare_extend(layout, max_bs, q_len)
        if q_len == 1:
            layout.add("extend.num_kv_splits", (max_bs,), torch.int32)

    def declare_draft(self, layout: ArenaLayout, max_bs: int) -> None:
        super().declare_draft(layout, max_bs)
        layout.add("draft.num_kv_splits", (max(self.num_steps - 1, 1), max_bs * self.topk), torch.int32)

    def _splits(self, kv_lens: Tensor, scope: str, workspace: Workspace) -> Tensor | None:
        splits = workspace.take(f"{scope}.num_kv_splits", tuple(kv_lens.shape), torch.int32)
        used = splits[tuple(slice(size) for size in kv_lens.shape)]
        device = kv_lens.device.type
        return used.copy_((kv_lens // _KEYS_PER_SPLIT[device] + 1).clamp_(max=_MAX_SPLITS[device]))
