"""Searches and measurements to make pages of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specdebug.bisect import Bisector
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.sampling import RateSampling, Sampled, Tally
from specdebug.campaign.trials.search import Findings, Search, Standing
from specdebug.campaign.trials.trial import Trial, TrialResult
from specdebug.report.bisect import Bisection
from specdebug.report.flake import Question
from specdebug.stats.claims import parse_claim

NAMES = ["100", "200", "300", "400"]
Judge = Callable[[Trial], TrialResult]


class Source:
    """Runs a trial by asking a function, at once."""

    capacity = 1
    identity = "test"
    candidates = ()

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._started: list[Trial] = []

    def start(self, trial: Trial) -> None:
        self._started.append(trial)

    def wait(self) -> tuple[Trial, TrialResult]:
        trial = self._started.pop(0)
        return trial, self._judge(trial)

    def close(self) -> None:
        """Nothing runs."""


class Silent:
    """Watches and says nothing."""

    def moved(self, standing: Standing | Tally) -> None: ...

    def counted(self, trial: Trial, result: TrialResult, standing: Standing | Tally) -> None: ...


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
    search = Search(Source(judge), journal, chooser, opening=(frozenset(NAMES),), seed=3, max_trials=most)
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
    return search.run(Silent()), subject, journal


def sampled(
    folder: Path, judge: Judge = culprit_200, most: int = 120, claim: str | None = None, pattern: str | None = None
) -> tuple[Sampled, Question, Journal]:
    """A measurement with 200 reverted, to its end."""
    journal = Journal(folder / "f.sqlite", "id", "about")
    parsed = None if claim is None else parse_claim(claim, 0.95)
    sampling = RateSampling(
        Source(judge),
        journal,
        lambda failures, runs: parsed is not None and parsed.decided(failures, runs) is not None,
        reverted=frozenset({"200"}),
        seed=3,
        max_trials=most,
        pattern=pattern,
    )
    question = Question("./test.sh <x>", parsed, 0.95, "f.sqlite", lambda seed: f"SEED={seed} ./test.sh", "bisect")
    return sampling.run(Silent()), question, journal
