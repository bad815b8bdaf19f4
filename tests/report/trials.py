"""Searches and measurements to make pages of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.campaign import Campaign
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.sampling import RateSampling, Sampled
from specdebug.campaign.trials.search import Findings
from specdebug.report.bisect import Bisection
from specdebug.report.flake import Question
from specdebug.search.bisect import Bisector
from specdebug.search.claims import parse_claim
from tests.campaign.trials.searches import Notes, Source, find

NAMES = ["100", "200", "300", "400"]
Judge = Callable[[Trial], TrialResult]


def culprit_200(trial: Trial) -> TrialResult:
    """Fails two times out of three with 200; besides, every eleventh trial is untestable or fails otherwise."""
    if trial.number % 11 == 7:
        return TrialResult("untestable", None, 0.1, "no device")
    if trial.number % 11 == 9:
        return TrialResult("fail", "exit:9", 0.1, "other")
    if "200" in trial.reverted and trial.seed % 3:
        return TrialResult("fail", "nan@<x>", 0.2, "nan at <b>x</b>")
    return TrialResult("pass", None, 0.1)


def chooser() -> Bisector:
    return Bisector(NAMES, confidence=0.95, seed=0)


def searched(folder: Path, judge: Judge = culprit_200, most: int = 200) -> tuple[Findings, Bisection, Journal]:
    """A search to its end, with its journal."""
    journal = Journal(folder / "j.sqlite", "id", "about")
    opening = (frozenset(NAMES),)
    findings = find(Source(judge), journal, chooser, opening=opening, seed=3, max_trials=most)
    subject = Bisection(
        over="toggles",
        what="./test.sh <x>",
        labels={name: f"fix <{name}>" for name in NAMES},
        names={name: name for name in NAMES},
        journal="j.sqlite",
        reproduce=lambda culprits, seed: f"REVERT={','.join(sorted(culprits))} SEED={seed} ./test.sh",
        next_step=lambda culprits, followed: "look",
        how_often="flake",
    )
    return findings, subject, journal


def sampled(
    folder: Path, judge: Judge = culprit_200, most: int = 120, claim: str | None = None, pattern: str | None = None
) -> tuple[Sampled, Question, Journal]:
    """A measurement with 200 reverted, to its end."""
    journal = Journal(folder / "f.sqlite", "id", "about")
    parsed = None if claim is None else parse_claim(claim, 0.95)
    sampling = RateSampling(
        lambda failures, runs: parsed is not None and parsed.decided(failures, runs) is not None,
        reverted=frozenset({"200"}),
        max_trials=most,
        pattern=pattern,
    )
    question = Question("./test.sh <x>", parsed, 0.95, "f.sqlite", lambda seed: f"SEED={seed} ./test.sh", "bisect")
    return Campaign(Source(judge), journal, 3, most).search(sampling, Notes()), question, journal
