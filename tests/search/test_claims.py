"""Claims: how they are read, what decides them, and how seldom that is wrong."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.base.errors import SpecDebugError
from specdebug.search.claims import (
    Apart,
    Below,
    Claim,
    CleanRuns,
    RatioTest,
    ended,
    parse_claim,
    ratio_test,
)
from specdebug.search.intervals import SLACK, reached
from tests.chance import fewest, most


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


@pytest.mark.parametrize(("rate", "confidence"), [(0.01, 0.95), (0.05, 0.95), (0.001, 0.95), (0.1, 0.99), (0.5, 0.9)])
def test_without_failures_it_takes_no_more_runs_than_a_fixed_test(rate: float, confidence: float) -> None:
    fixed = math.ceil(math.log(1 - confidence) / math.log1p(-rate))
    assert fixed <= CleanRuns(rate, 1 - confidence).needed(0) <= fixed + math.ceil(0.01 / rate)


def accepted(rule: CleanRuns, rate: float, horizon: int) -> float:
    """Probability to accept within so many runs, run by run."""
    waiting, total = np.zeros(horizon + 2), 0.0
    waiting[0] = 1.0
    for n in range(1, horizon + 1):
        waiting[1:] = waiting[1:] * (1 - rate) + waiting[:-1] * rate
        waiting[0] *= 1 - rate
        for k in range(n + 1):
            if rule.needed(k) > n:
                break
            total += waiting[k]
            waiting[k] = 0.0
    return total


@settings(max_examples=20)
@given(st.floats(0.05, 0.8), st.floats(0.01, 0.3))
def test_the_error_is_never_more_than_allowed(rate: float, error: float) -> None:
    rule = CleanRuns(rate, error)
    assert accepted(rule, rate, 150) <= error * (1 + 2 * SLACK)
    assert accepted(rule, min(0.95, rate * 1.2), 150) <= error * (1 + 2 * SLACK)


@pytest.mark.parametrize(("below", "above", "error"), [(0.05, 0.2, 0.05), (0.1, 0.3, 0.01), (0.2, 0.9, 0.05)])
def test_errors_are_at_most_what_is_allowed(below: float, above: float, error: float) -> None:
    test = ratio_test(below, above, error)
    assert ended(test, below)[1] <= error
    assert ended(test, above)[0] <= error
    assert max(test.up, test.down) < -math.log(error)  # drawn in
    assert ended(test, below / 2)[1] < ended(test, below)[1]
    assert ended(test, (1 + above) / 2)[0] < ended(test, above)[0]


def test_following_every_path_agrees_with_simulation() -> None:
    test = RatioTest(0.1, 0.4, 2.0, 1.5)
    failures = np.cumsum(np.random.default_rng(3).random((4000, 300)) < 0.25, axis=1)
    ratio = failures * test.failed + (np.arange(1, 301) - failures) * test.passed
    over = (ratio >= test.up) | (ratio <= -test.down)
    assert over.any(axis=1).all()
    low = (ratio[np.arange(4000), over.argmax(axis=1)] <= -test.down).sum()
    exact = ended(test, 0.25)
    assert sum(exact) == pytest.approx(1, abs=1e-5)
    assert fewest(4000, exact[0]) <= low <= most(4000, exact[0])


@given(st.floats(0.0, 20.0), st.integers(-100, 100))
def test_last_bits_do_not_decide(limit: float, bits: int) -> None:
    assert reached(limit + bits * math.ulp(limit), limit)
    assert not reached(limit - 1.01 * SLACK - 1e-12, limit)
