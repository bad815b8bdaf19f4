"""Two parts of attention weigh what their keys weigh; empty parts nothing, NaN always shows."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.kernels.merge_pair import PartialAttention, merge_pair

INF = float("inf")


@given(batch=st.integers(1, 3), q_len=st.integers(1, 4), split=st.integers(0, 9), seed=st.integers(0, 999))
@settings(max_examples=60)
def test_parts_give_what_all_keys_at_once_give(batch: int, q_len: int, split: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(batch, 2, q_len, 9, generator=generator) * 3
    values = torch.randn(batch, 2, 9, 5, generator=generator)

    def attend(start: int, stop: int) -> PartialAttention:
        part = scores[..., start:stop]
        out = torch.softmax(part, -1) @ values[..., start:stop, :]
        return PartialAttention(out.transpose(1, 2).contiguous(), torch.logsumexp(part, -1))

    first, second = attend(0, split), attend(split, 9)
    each = PartialAttention(second.out.flatten(0, 1).unsqueeze(1), second.lse.transpose(1, 2).reshape(-1, 2, 1))
    for other in (second, each):  # one sequence, or as many as there are queries
        torch.testing.assert_close(merge_pair(first, other), attend(0, 9).out.flatten(0, 1))


def test_neither_has_keys_and_a_nan_without_weight() -> None:
    nothing = PartialAttention(torch.zeros(1, 2, 1, 3), torch.full((1, 1, 2), -INF))
    assert torch.equal(merge_pair(nothing, nothing), torch.zeros(2, 1, 3))
    bad = PartialAttention(torch.tensor([0.0, float("nan")]).view(1, 2, 1, 1).expand(-1, -1, -1, 3), nothing.lse)
    merged = merge_pair(PartialAttention(torch.ones(1, 2, 1, 3), torch.zeros(1, 1, 2)), bad)
    assert torch.equal(merged[0], torch.ones(1, 3))
    assert bool(merged[1].isnan().all())
