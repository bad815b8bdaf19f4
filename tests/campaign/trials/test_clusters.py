"""Of several ways to fail one is followed, and the others are no verdict on it."""

from __future__ import annotations

from specdebug.base.trial import TrialResult
from specdebug.campaign.trials.search import HOPELESS, LEAD, OPENING, Clusters, SeenSignature

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
    assert clusters.seen == (SeenSignature("a", 2, True), SeenSignature("b", 1, False))


def test_once_chosen_it_stays() -> None:
    clusters = fed(*[fail("a")] * LEAD, *[fail("b")] * 9)
    assert clusters.followed == "a"
    assert clusters.seen[0] == SeenSignature("b", 9, False)


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


NOISE, DAMAGE = "error:ReadTimeout", "nan@sampler.logits"


def test_damage_is_followed_before_what_is_more_frequent() -> None:
    clusters = fed(fail(NOISE), fail(DAMAGE), fail(NOISE), fail(DAMAGE))
    assert (clusters.followed, clusters.settled) == (DAMAGE, True)
    assert clusters.chosen == "the most frequent of the first trials' failures that tell of damage"


def test_an_exception_gives_way_to_damage_that_shows_in_the_opening() -> None:
    clusters = fed(*[fail(NOISE)] * LEAD)
    assert (clusters.followed, clusters.settled) == (NOISE, True)
    assert clusters.chosen.endswith("none of which tells of damage")
    clusters.add(fail(DAMAGE))
    assert clusters.followed == DAMAGE


def test_later_it_gives_way_to_damage_that_is_no_stray() -> None:
    clusters = fed(*[fail(NOISE)] * OPENING)
    for _ in range(OPENING // 3):
        clusters.add(fail(DAMAGE))
        assert clusters.followed == NOISE
    clusters.add(fail(DAMAGE))
    assert clusters.followed == DAMAGE
    assert fed(*[fail(NOISE)] * 100, *[fail(DAMAGE)] * 20).followed == NOISE


def test_damage_never_gives_way() -> None:
    clusters = fed(*[fail(DAMAGE)] * LEAD, *[fail(NOISE)] * 50, *[fail("oob@x")] * 50)
    assert clusters.followed == DAMAGE
    assert fed(pattern=NOISE).chosen == "as --signature or the scenario states"
    assert fed().chosen == ""
