"""The likeliest token of each row of logits."""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.engine.kernels.twin import triton_on_gpu


@triton_on_gpu
def argmax(x: Tensor) -> Tensor:
    """The place of the largest of each row of x [n, V]: int64 [n]; of equals the first, and NaN above any number."""
    return x.argmax(dim=-1)


@triton_on_gpu
def softmax_top1(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of softmax(logits [n, V]) as ``softmax_topk`` gives it for k = 1: float32 [n, 1], int64 [n, 1]."""
    return torch.softmax(logits, dim=-1, dtype=torch.float32).max(dim=-1, keepdim=True)
