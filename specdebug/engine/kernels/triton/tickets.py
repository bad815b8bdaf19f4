"""Counters that tell the programs of a launch which of them is the last to finish."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def tickets(device: torch.device, count: int) -> Tensor:
    """Counters int32 [>= count], zeros before and after a launch. All launches share them, so none may run beside
    another, and the first of a size must not be captured in a graph."""
    return _zeros(device, 1 << max(count - 1, 0).bit_length())


@lru_cache(maxsize=64)
def _zeros(device: torch.device, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)
