"""The reference: a softmax's largest in order, equals by place, and rows without a softmax."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.kernels.softmax_topk import softmax_topk


@given(
    rows=st.lists(st.lists(st.integers(-2, 2), min_size=6, max_size=6), min_size=1, max_size=4),
    k=st.integers(1, 6),
)
@settings(max_examples=200)
def test_descending_and_of_equals_the_first(rows: list[list[int]], k: int) -> None:
    """Whole logits: equal ones have equal probabilities, and others do not."""
    probs, ids = softmax_topk(torch.tensor(rows, dtype=torch.float32), k)
    assert (probs.dtype, ids.dtype) == (torch.float32, torch.int64)
    everything = torch.softmax(torch.tensor(rows, dtype=torch.float32), -1)
    assert torch.equal(probs, everything.gather(1, ids))
    for row, found in zip(rows, ids.tolist(), strict=True):
        assert found == [place for _, place in sorted((-logit, place) for place, logit in enumerate(row))][:k]


def test_half_precision_is_weighed_in_single() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]], dtype=torch.bfloat16)
    probs, ids = softmax_topk(logits, 2)
    assert ids.tolist() == [[1, 2]]
    torch.testing.assert_close(probs, torch.softmax(logits.float(), -1)[:, [1, 2]])


def test_a_row_without_a_softmax_is_nan_at_the_first_places() -> None:
    inf, nan = float("inf"), float("nan")
    logits = torch.tensor([[0.0, nan, 1.0, 2.0], [0.0, inf, 1.0, 2.0], [-inf] * 4, [0.0, 3.0, 1.0, 2.0]])
    probs, ids = softmax_topk(logits, 3)
    assert probs[:3].isnan().all()
    assert ids.tolist() == [[0, 1, 2]] * 3 + [[1, 3, 2]]
