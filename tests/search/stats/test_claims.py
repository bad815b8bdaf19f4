"""Claims: how they are read, what decides them, and how seldom that is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.search.claims import Apart, Below, Claim, parse_claim
from tests.chance import most


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("rate<1%", Below(0.01, 0.95)),
        (" rate <= 0.5 % ", Below(0.005, 0.95)),
        ("rate<.25", Below(0.25, 0.95)),
        ("rate<5% or rate>20%", Apart(0.05, 0.2, 0.95)),
        ("rate < 0.05 or rate >= 0.2", Apart(0.05, 0.2, 0.95)),
    ],
)
def test_what_can_be_claimed(text: str, claim: Below | Apart) -> None:
    assert parse_claim(text, 0.95) == claim
    assert parse_claim(parse_claim(text, 0.95).text, 0.95) == claim


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rate", "must be such as"),
        ("rate<one", "must be such as"),
        ("rate>1%", "must be such as"),
        ("rate<0%", "no number of runs"),
        ("rate<100%", "no number of runs"),
        ("rate<1", "no number of runs"),
        ("rate<5% or rate>100%", "no number of runs"),
        ("rate<20% or rate>5%", "wrong way round"),
    ],
)
def test_what_cannot(text: str, words: str) -> None:
    with pytest.raises(SpecDebugError, match=words):
        parse_claim(text, 0.95)


def test_owed_is_what_is_then_enough() -> None:
    for claim in (Below(0.01, 0.95), Below(0.3, 0.9), Apart(0.05, 0.2, 0.95)):
        for failures, runs in ((0, 0), (0, 2), (1, 7)):
            owed = claim.owed(failures, runs)
            assert claim.decided(failures, runs + owed) is True
            assert claim.decided(failures, runs + owed - 1) is not True
    assert Below(0.01, 0.95).owed(0, 40) == 259


def test_failures_refute() -> None:
    assert Below(0.01, 0.95).decided(2, 3) is False
    assert Below(0.3, 0.95).decided(6, 6) is False
    assert Below(0.01, 0.95).decided(1, 50) is None
    assert Apart(0.05, 0.2, 0.95).decided(4, 6) is False


def answers(claim: Claim, rate: float, cases: int, limit: int) -> tuple[int, int]:
    """How many cases end with "holds" and with "refuted" within ``limit`` runs."""
    failures = np.cumsum(np.random.default_rng(11).random((cases, limit)) < rate, axis=1)
    known: dict[tuple[int, int], bool | None] = {}
    ends = []
    for one in failures.tolist():
        for n, k in enumerate(one, start=1):
            if (k, n) not in known:
                known[k, n] = claim.decided(k, n)
            if known[k, n] is not None:
                break
        ends.append(known[k, n])
    return ends.count(True), ends.count(False)


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3])
def test_wrong_answers_at_the_claimed_rate_are_as_rare_as_stated(rate: float) -> None:
    holds, refuted = answers(Below(rate, 0.95), rate, 1500, 400)
    assert holds <= most(1500, 0.05)
    assert refuted <= most(1500, 0.05)


def test_one_of_two_rates() -> None:
    claim = Apart(0.05, 0.2, 0.95)
    at_low, at_high = answers(claim, 0.05, 1500, 1000), answers(claim, 0.2, 1500, 1000)
    assert sum(at_low) == sum(at_high) == 1500  # always decided
    assert at_low[1] <= most(1500, 0.05)
    assert at_high[0] <= most(1500, 0.05)
