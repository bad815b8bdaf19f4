"""Attention over two disjoint sets of keys, as FlashAttention gives it, merged by log-sum-exp."""

from typing import NamedTuple

import torch
from torch import Tensor


class PartialAttention(NamedTuple):
    """Attention of B sequences of q queries: ``out`` [B, q, Hq, D], contiguous, and the log of its summed weights,
    ``lse`` float32 [B, Hq, q]; zeros and -inf where a query had no keys."""

    out: Tensor
    lse: Tensor


def merge_pair(first: PartialAttention, second: PartialAttention) -> Tensor:
    """Merge two parts of the same n = B·q queries to [n, Hq, D], weighed in float32; each may count sequences its own
    way.

    Zeros where neither part had keys. NaN in a part is NaN in the result, whatever its weight: a library that gives a
    row of NaN no weight must not hide it.
    """
    if first.out.is_cuda:
        from specdebug.engine.kernels.triton import merging

        return merging.merge_pair(first, second)
    logs = torch.stack([part.lse.transpose(1, 2).flatten(0, 1) for part in (first, second)])
    largest = logs.amax(dim=0)
    weights = torch.exp(logs - largest.masked_fill(largest == float("-inf"), 0.0))
    total = weights.sum(dim=0)
    weights = weights / total.masked_fill(total == 0.0, 1.0)
    outs = torch.stack([part.out.flatten(0, 1) for part in (first, second)])
    return (outs.float() * weights.unsqueeze(-1)).sum(dim=0).to(outs.dtype)
