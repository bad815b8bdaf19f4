"""Requests of many lengths together come to what each comes to by itself, and padding to nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specdebug.targets.sglang.inside import attend as module
from specdebug.targets.sglang.inside.attend import attend, attend_slots

HEADS, KV_HEADS, DIM, SLOTS, QUERIES = 4, 2, 8, 30, 3
SCALE = 0.3
LENGTHS = [5, 0, 9, 3]


def made(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("at_once", [1, 20, 1 << 16])
def test_a_batch_is_its_requests_one_by_one(causal: bool, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    q, k, v = made(len(LENGTHS), QUERIES, HEADS, DIM), made(SLOTS, KV_HEADS, DIM), made(SLOTS, KV_HEADS, DIM)
    slots = torch.randint(1, SLOTS, (len(LENGTHS), 12), generator=torch.Generator().manual_seed(0))
    k[0] = v[0] = float("nan")  # what padding reads
    out, lse = attend_slots(q, k, v, slots, LENGTHS, SCALE, causal)
    for row, length in enumerate(LENGTHS):
        at = slots[row, :length]
        if length:
            right = attend(q[row], k[at], v[at], SCALE, causal)
        else:
            right = torch.zeros_like(q[row]), torch.full((HEADS, QUERIES), float("-inf"))
        torch.testing.assert_close(out[row], right[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(lse[row], right[1], rtol=1e-5, atol=1e-5)
