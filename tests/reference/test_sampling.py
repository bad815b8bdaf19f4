"""The reference's distribution of a sampled token is the engine's, and its border has room for rounding alone."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.textbook.request import SamplingParams
from specdebug.engine.textbook.sampler import target_probs
from specdebug.reference.sampling import kept_probs, may_be_kept

CUTS = [(1.0, 0, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.6), (0.9, 8, 0.5), (1.1, 1, 0.9)]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), CUTS)
def test_it_is_the_engine_s_distribution(temperature: float, top_k: int, top_p: float) -> None:
    logits = 3 * torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    logits[3, 5:9] = logits[3].max()  # equals
    ours = target_probs(logits, SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p))
    probs, tokens = kept_probs(logits, temperature, top_k, top_p)
    torch.testing.assert_close(ours.gather(-1, tokens).double(), probs, atol=1e-6, rtol=1e-5)
    everything = torch.arange(64).expand(20, 64)
    for row in range(20):
        kept = may_be_kept(
            logits[row].expand(64, 64), everything[row], torch.full((64,), 1e-4), temperature, top_k, top_p
        )
        assert torch.equal(kept, ours[row] > 0)


def test_what_lies_at_the_border_may_be_kept_by_rounding_and_what_lies_beyond_may_not() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.999, 0.9]]).expand(4, 4)
    tokens = torch.arange(4)
    assert may_be_kept(logits, tokens, torch.full((4,), 0.01), 1.0, 2, 1.0).tolist() == [True, True, True, False]
    assert may_be_kept(logits, tokens, torch.full((4,), 0.0001), 1.0, 2, 1.0).tolist() == [True, True, False, False]
    before = float(torch.softmax(logits[0].double(), -1)[:2].sum())
    for top_p, kept in ((before + 0.01, True), (before - 0.0005, True), (before - 0.3, False)):
        assert may_be_kept(logits, tokens, torch.full((4,), 0.01), 1.0, 0, top_p).tolist()[2] is kept


def test_more_room_lets_more_in() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1)).expand(50, 50)
    tokens = torch.arange(50)
    kept = [int(may_be_kept(logits, tokens, torch.full((50,), room), 0.8, 9, 0.7).sum()) for room in (0.0, 0.05, 0.5)]
    assert kept == sorted(kept)
    assert kept[0] < kept[-1]


def test_cut_jointly_top_p_is_of_the_whole_distribution() -> None:
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
    one_by_one, tokens = kept_probs(logits, 1.0, 2, 0.5)  # of 0.57 and 0.43 the first is enough
    assert one_by_one.tolist() == [[1.0, 0.0, 0.0, 0.0]]
    jointly, _ = kept_probs(logits, 1.0, 2, 0.5, joint=True)
    torch.testing.assert_close(jointly, torch.tensor([[4 / 7, 3 / 7, 0, 0]], dtype=torch.float64))
    margins, each = torch.full((4,), 1e-4), logits.expand(4, 4)
    assert may_be_kept(each, tokens[0], margins, 1.0, 2, 0.5).tolist() == [True, False, False, False]
    assert may_be_kept(each, tokens[0], margins, 1.0, 2, 0.5, joint=True).tolist() == [True, True, False, False]
