"""The likeliest token of each row of logits."""

from __future__ import annotations

import torch
from torch import Tensor


def argmax(x: Tensor) -> Tensor:
    """Where the largest of each row of x [n, V] is: int64 [n]; the first of equals, and NaN above any number."""
    if x.is_cuda:
        from specdebug.engine.kernels.triton import argmax as twin

        return twin.argmax(x)
    return x.argmax(dim=-1)


def softmax_top1(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of softmax(logits [n, V]): probabilities float32 [n, 1] and where they are, int64 [n, 1].

    A row that has no softmax (NaN, an infinity above all, nothing but -inf) gives NaN, at 0. Logits so close that their
    probabilities round to one number are equals on a CPU, but not on a GPU.
    """
    if logits.is_cuda:
        from specdebug.engine.kernels.triton import argmax as twin

        return twin.softmax_top1(logits)
    return torch.softmax(logits, dim=-1, dtype=torch.float32).max(dim=-1, keepdim=True)
