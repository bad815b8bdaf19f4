"""The likeliest tokens of each row of logits."""

import torch
from torch import Tensor

from specdebug.engine.kernels.twin import triton_on_gpu

MAX_FUSED = 16
"""The largest k of the device's own kernel. Above it torch finds the tokens, and may put any of equals first."""


@triton_on_gpu
def argmax(x: Tensor) -> Tensor:
    """The place of the largest of each row of x [n, V]: int64 [n]; of equals the first, and NaN above any number."""
    return x.argmax(dim=-1)


@triton_on_gpu
def softmax_top1(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of softmax(logits [n, V]) as ``softmax_topk`` gives it for k = 1: float32 [n, 1], int64 [n, 1]."""
    return torch.softmax(logits, dim=-1, dtype=torch.float32).max(dim=-1, keepdim=True)


@triton_on_gpu
def softmax_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of softmax(logits [n, V]), descending: probabilities float32 [n, k], and their places int64 [n, k].

    Equals keep their order. A row that has no softmax (NaN, an infinity above all, nothing but -inf) gives NaN, at
    0 .. k - 1. Logits so close that their probabilities round to one number are equals on a CPU, but not on a GPU.
    """
    probs = torch.softmax(logits, dim=-1, dtype=torch.float32)
    values, ids = torch.topk(probs, min(k + 1, probs.shape[-1]), dim=-1)
    if not bool((values[:, 1:] < values[:, :-1]).all()):  # equals, or NaN: topk takes any, and the sort costs more
        values, ids = torch.sort(probs, dim=-1, descending=True, stable=True)
    return values[:, :k].contiguous(), ids[:, :k].contiguous()
