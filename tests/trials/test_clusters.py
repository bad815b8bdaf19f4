"""Of several ways to fail one is followed, and the others are no verdict on it."""

from __future__ import annotations

from specdebug.trials.clusters import HOPELESS, LEAD, OPENING, Clusters, Seen
from specdebug.trials.trial import TrialResult

PASS = TrialResult("pass", None, 0.1)
UNTESTABLE = TrialResult("untestable", None, 0.1)


def fail(signature: str, besides: tuple[str, ...] | None = None) -> TrialResult:
    return TrialResult("fail", signature, 0.1, besides=besides)


def fed(*results: TrialResult, pattern: str | None = None) -> Clusters:
    clusters = Clusters(pattern)
    for result in results:
        clusters.add(result)
    return clusters


def test_the_most_frequent_is_followed_once_it_leads() -> None:
    undecided = fed(PASS, fail("b"), fail("a"))
    assert (undecided.followed, undecided.settled) == ("b", False)
    clusters = fed(PASS, fail("b"), fail("a"), fail("a"))
    assert (clusters.followed, clusters.settled) == ("a", True)
    assert [clusters.verdict(r) for r in (PASS, fail("a"), fail("b"), UNTESTABLE)] == [False, True, None, None]
    assert clusters.seen == (Seen("a", 2, True), Seen("b", 1, False))


def test_once_chosen_it_stays() -> None:
    clusters = fed(*[fail("a")] * LEAD, *[fail("b")] * 9)
    assert clusters.followed == "a"
    assert clusters.seen[0] == Seen("b", 9, False)


def test_the_opening_ends_in_any_case() -> None:
    assert not fed(*[PASS] * (OPENING - 1)).settled
    clusters = fed(*[PASS] * OPENING)
    assert (clusters.settled, clusters.followed) == (True, None)
    clusters.add(fail("late"))
    assert clusters.followed == "late"


def test_an_opening_that_can_never_be_tested_is_given_up() -> None:
    assert not fed(*[UNTESTABLE] * (HOPELESS - 1)).settled
    assert fed(*[UNTESTABLE] * HOPELESS).settled
    assert not fed(PASS, *[UNTESTABLE] * HOPELESS).settled


def test_a_pattern_is_followed_from_the_start() -> None:
    clusters = fed(fail("nan@a.b"), fail("oob@a.b"), pattern="nan@*")
    assert (clusters.settled, clusters.followed) == (True, "nan@*")
    assert [clusters.verdict(fail(s)) for s in ("nan@x", "oob@x")] == [True, None]


def test_another_failure_is_a_verdict_if_the_run_went_on_and_did_not_show_the_followed_one() -> None:
    clusters = fed(fail("nan@a"), pattern="nan@*")
    assert clusters.verdict(fail("oob@b", besides=("page@c",))) is False
    assert clusters.verdict(fail("oob@b", besides=("page@c", "nan@a"))) is None  # may be a consequence
    assert clusters.verdict(fail("nan@a", besides=("oob@b",))) is True
