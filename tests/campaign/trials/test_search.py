"""A search is a function of its results: however trials are timed, killed and resumed, it runs and says the same."""

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.campaign import Campaign
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.search import HELD, IDLE, Clusters, CulpritSearch, Findings, SeenSignature
from specdebug.campaign.trials.search import UNTESTABLE as GIVEN_UP
from specdebug.search.bisect import Bisector, openings
from tests.campaign.trials.searches import PASSED, UNTESTABLE, Behaviour, Kept, Notes, Source, failed, find
from tests.chance import most

NAMES = tuple("abcdefgh")


STATED = 0.05
"""At a confidence of 95% no more answers are wrong than this share."""


def flaky(culprit: str, rate: float) -> Behaviour:
    def behave(trial: Trial) -> TrialResult:
        shows = culprit in trial.reverted and random.Random(trial.seed).random() < rate
        return failed() if shows else PASSED

    return behave


class Stop(BaseException):
    """As abrupt as a kill."""


def among(behave: Behaviour, capacity: int = 1, order: int = 0, **options: Any) -> Source:
    return Source(behave, capacity, order, names="".join(NAMES), **options)


def search(source: Source, path: Path, pattern: str | None = None, max_trials: int = 400) -> Findings:
    with Journal(path, "id", "about") as journal:
        return searched(source, 5, pattern, journal, max_trials, lambda: Bisector(NAMES, seed=1))


def two_ways(culprit: str, salt: int) -> Behaviour:
    """A fifth of the trials ends with an unrelated time-out before the bug could show; of the others half do."""

    def behave(trial: Trial) -> TrialResult:
        chance = random.Random(f"{trial.seed} {salt}")
        if chance.random() < 0.2:
            return failed("error:ReadTimeout")
        return failed("nan@sampler.logits") if culprit in trial.reverted and chance.random() < 0.5 else PASSED

    return behave


def searched(
    source: Source,
    seed: int,
    pattern: str | None = None,
    journal: Journal | None = None,
    max_trials: int = 400,
    chooser: Callable[[], Bisector] | None = None,
) -> Findings:
    """The same in memory, under a seed of its own."""
    made, opening = chooser or partial(Bisector, NAMES, seed=seed), (frozenset(NAMES),)
    return find(source, journal or Kept(), made, seed=seed, max_trials=max_trials, pattern=pattern, opening=opening)


def test_unrelated_failures_do_not_hide_the_culprit() -> None:
    wrong = 0
    for case in range(12):
        culprit = NAMES[case % len(NAMES)]
        findings = searched(among(two_ways(culprit, case)), case)
        assert findings.standing.followed == "nan@sampler.logits"
        assert {one.signature for one in findings.standing.signatures} == {"nan@sampler.logits", "error:ReadTimeout"}
        wrong += findings.answer is None or findings.answer.culprits != {culprit}
    assert wrong <= most(12, STATED)


def test_it_names_a_flaky_culprit_and_a_trial_that_shows_it() -> None:
    wrong = 0
    for case in range(16):
        culprit = NAMES[case % 8]
        source = among(flaky(culprit, 0.5))
        findings = searched(source, case)
        wrong += findings.answer is None or findings.answer.culprits != {culprit}
        assert findings.standing.trials == len(source.ran)
        assert findings.shown_by is not None
        assert culprit in findings.shown_by.reverted
        assert flaky(culprit, 0.5)(findings.shown_by).outcome == "fail"
        assert source.closed
    assert wrong <= most(16, STATED)


def test_what_fails_at_random_is_seldom_blamed_on_anything() -> None:
    blamed = 0
    for seed in range(60):

        def at_random(trial: Trial, seed: int = seed) -> TrialResult:
            return failed() if random.Random(f"{seed} {trial.seed}").random() < 0.3 else PASSED

        answer = searched(among(at_random), seed).answer
        blamed += answer is not None and bool(answer.culprits)
    assert blamed <= most(60, 0.1), "a third of them without controls"


def test_that_there_is_none_is_an_answer(tmp_path: Path) -> None:
    findings = search(among(lambda trial: PASSED), tmp_path / "j")
    assert findings.answer is not None
    assert findings.answer.culprits == frozenset()
    assert findings.silent == findings.standing.trials
    assert findings.shown_by is None


def unheard(case: int) -> tuple[Source, frozenset[frozenset[str]], str | None]:
    """A job of another engine, which never hears of what it is to revert: it passes, or fails at a rate, in one way or
    two. It takes one fix at a time, or a set of which two edit one line."""
    drawn = random.Random(f"unheard {case}")
    rate = drawn.choice([0.0, 0.0, 0.02, 0.3, 1.0])
    names = drawn.choice([["exit:1"], ["nan@a.b"], ["nan@a.b", "error:ReadTimeout"]])

    def behave(trial: Trial) -> TrialResult:
        chance = random.Random(f"{case} {trial.seed}")
        return failed(chance.choice(names)) if chance.random() < rate else PASSED

    singly = frozenset(map(frozenset, itertools.combinations(NAMES[:3], 2)))
    apart = drawn.choice([singly, frozenset({frozenset("ab")}), frozenset()])
    return Source(behave, names="abc"), apart, drawn.choice([None, None, "nan@*"])


def test_of_two_hundred_jobs_whose_reverts_do_nothing_none_is_acquitted() -> None:
    ends = Counter[str]()
    blamed = 0
    for case in range(200):
        source, apart, pattern = unheard(case)
        findings = find(
            source,
            Kept(),
            lambda apart=apart, case=case: Bisector(NAMES[:3], confidence=0.9, seed=case, apart=apart),
            opening=openings(NAMES[:3], apart),
            seed=case,
            max_trials=80,
            pattern=pattern,
            proven=False,
        )
        ends[findings.reason] += 1
        assert findings.answer is None or findings.answer.culprits
        blamed += findings.answer is not None
        assert not any(pair <= trial.reverted for trial in source.ran for pair in apart)
    assert ends["unproven"] >= 150
    assert blamed <= most(200, 0.15)


def counting(source: Source, ran: str) -> Source:
    """Trials that say which of their candidates ran: of those, and no others."""
    behave = source.behave

    def told(trial: Trial) -> TrialResult | BaseException:
        result = behave(trial)
        if isinstance(result, BaseException):
            return result
        return replace(result, ran=trial.reverted & frozenset(ran), counted=True)

    source.behave = told
    return source


def test_of_two_hundred_jobs_that_run_no_reverted_line_none_is_acquitted_or_blamed() -> None:
    for case in range(200):
        source, apart, pattern = unheard(case)
        search = CulpritSearch(
            source.candidates,
            partial(Bisector, confidence=0.9, seed=case, apart=apart),
            opening=openings(NAMES[:3], apart),
            max_trials=80,
            pattern=pattern,
        )
        findings = Campaign(counting(source, ""), Kept(), case, 80).search(search, Notes())
        assert findings.answer is None
        assert findings.reason == "not-tried"
        assert findings.not_tried == dict.fromkeys("abc", IDLE)


@pytest.mark.parametrize("culprit", ["b", None])
def test_candidates_that_never_take_effect_are_left_out_and_the_others_are_told_apart(culprit: str | None) -> None:
    def behave(trial: Trial) -> TrialResult:
        return failed() if culprit in trial.reverted and trial.seed % 3 else PASSED

    source = counting(Source(behave, names="abcd"), "bc")
    chooser = partial(Bisector, seed=1)
    search = CulpritSearch(source.candidates, chooser, opening=(frozenset("abcd"),), max_trials=200)
    findings = Campaign(source, Kept(), 5, 200).search(search, Notes())
    assert findings.answer is not None
    assert findings.answer.culprits == frozenset(culprit or "")
    assert findings.not_tried == dict.fromkeys("ad", IDLE)
    assert findings.silent == (0 if culprit else findings.silent)


@pytest.mark.parametrize(("culprit", "held"), [("b", "ad"), ("d", ""), (None, "")])
def test_dear_candidates_are_switched_on_once_the_others_are_acquitted(culprit: str | None, held: str) -> None:
    source = Source(flaky(culprit or "-", 0.7), names="abcd")
    candidates = [replace(each, dear=each.id in "ad") for each in source.candidates]
    search = CulpritSearch(candidates, partial(Bisector, seed=1), opening=(frozenset("abcd"),), max_trials=200)
    findings = Campaign(source, Kept(), 5, 200).search(search, Notes())
    assert findings.answer is not None
    assert findings.answer.culprits == frozenset(culprit or "")
    assert findings.not_tried == dict.fromkeys(held, HELD)
    dear = [bool(trial.reverted & frozenset("ad")) for trial in source.started]
    assert any(dear) is not bool(held)
    assert not any(dear[: dear.index(True) if any(dear) else None])


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("stop_after", [0, 1, 5, 13])
def test_resumed_it_repeats_nothing_and_ends_the_same(stop_after: int, jobs: int, tmp_path: Path) -> None:
    whole = among(flaky("d", 0.4), jobs)
    expected = search(whole, tmp_path / "whole")
    sources = [among(flaky("d", 0.4), jobs, order, stop_after=stop_after, error=Stop()) for order in range(3)]
    for source in sources:
        with contextlib.suppress(Stop):
            search(source, tmp_path / "j")
    last = among(flaky("d", 0.4), jobs)
    findings = search(last, tmp_path / "j")
    assert findings.answer == expected.answer
    assert findings.shown_by == expected.shown_by
    assert findings.standing.trials == expected.standing.trials
    ran = [trial for source in (*sources, last) for trial in source.ran]
    assert len({trial.number for trial in ran}) == len(ran)
    assert {t for t in whole.ran if t.number < expected.standing.trials} <= set(ran)


def test_it_gives_up_when_nothing_can_be_tested(tmp_path: Path) -> None:
    findings = search(among(lambda trial: UNTESTABLE), tmp_path / "j")
    assert (findings.reason, findings.answer) == ("untestable", None)
    assert findings.standing.trials == GIVEN_UP


def test_an_interrupt_and_an_error_end_it_with_what_is_known(tmp_path: Path) -> None:
    source = among(flaky("a", 0.3), 2, stop_after=9, error=KeyboardInterrupt())
    interrupted = search(source, tmp_path / "j")
    assert (interrupted.reason, interrupted.answer) == ("interrupted", None)
    assert source.closed
    trouble = SpecDebugError("no more")
    source = among(flaky("a", 0.3), 2, stop_after=1, error=trouble)
    stopped = search(source, tmp_path / "j")
    assert (stopped.reason, stopped.trouble) == ("trouble", trouble)
    assert stopped.standing.resumed >= interrupted.standing.trials > 0
    assert source.closed


def fail(signature: str, besides: tuple[str, ...] | None = None) -> TrialResult:
    return TrialResult("fail", signature, 0.1, besides=besides)


def fed(*results: TrialResult, pattern: str | None = None) -> Clusters:
    clusters = Clusters(pattern)
    for result in results:
        clusters.add(result)
    return clusters


def test_the_most_frequent_is_followed_once_it_leads() -> None:
    undecided = fed(PASSED, fail("b"), fail("a"))
    assert (undecided.followed, undecided.settled) == ("b", False)
    clusters = fed(PASSED, fail("b"), fail("a"), fail("a"))
    assert (clusters.followed, clusters.settled) == ("a", True)
    assert [clusters.verdict(r) for r in (PASSED, fail("a"), fail("b"), UNTESTABLE)] == [False, True, None, None]
    assert clusters.seen == (SeenSignature("a", 2, True), SeenSignature("b", 1, False))


def test_another_failure_is_a_verdict_if_the_run_went_on_and_did_not_show_the_followed_one() -> None:
    clusters = fed(fail("nan@a"), pattern="nan@*")
    assert clusters.verdict(fail("oob@b", besides=("page@c",))) is False
    assert clusters.verdict(fail("oob@b", besides=("page@c", "nan@a"))) is None  # may be a consequence
    assert clusters.verdict(fail("nan@a", besides=("oob@b",))) is True
