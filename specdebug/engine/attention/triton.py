"""Triton's plan: FlashInfer's lists with int64 indices, and split-KV decode chosen by the planner."""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.engine.attention.flashinfer import FlashInferPlanner

_KEYS_PER_SPLIT = 512
_MAX_SPLITS = 8


class TritonPlanner(FlashInferPlanner):
    """kv_indptr / kv_indices (int64) and num_kv_splits (int32) for single-query batches."""

    index_dtype = torch.int64

    def _splits(self, kv_lens: Tensor, q_len: int) -> Tensor | None:
        if q_len != 1:
            return None
        return (kv_lens // _KEYS_PER_SPLIT + 1).clamp(max=_MAX_SPLITS).to(torch.int32)
