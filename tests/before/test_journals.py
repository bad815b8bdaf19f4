"""Journals of before the rooms were redesigned (commit 4ed8b65) are read on: same answer, and no trial is run again.

They were made by ``specdebug bisect flaky_kv_indices --seed 3 --jobs 1 --json`` and ``specdebug flake flaky_kv_indices
--claim 'rate<20%' --seed 5 --jobs 1 --json``. What identifies a scenario's journal holds the version of Python and
the text of every toggle, so the searches here take the identity from the file itself.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specdebug.bisect import Bisector
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.sampling import RateSampling, Sampled
from specdebug.campaign.trials.search import Findings, Search
from specdebug.campaign.trials.source import Candidate
from specdebug.campaign.trials.trial import Trial, TrialResult
from specdebug.stats.claims import parse_claim

HERE = Path(__file__).parent


class Kept:
    """Runs the trials that the journal lacks: as they went before, if they are known; else it fails."""

    identity = ""
    capacity = 1

    def __init__(self, names: tuple[str, ...], known: dict[int, tuple[int, TrialResult]]) -> None:
        self.candidates = tuple(Candidate(name, name) for name in names)
        self.ran: list[int] = []
        self._known = known
        self._running: list[Trial] = []

    def start(self, trial: Trial) -> None:
        self._running.append(trial)

    def wait(self) -> tuple[Trial, TrialResult]:
        trial = self._running.pop(0)
        seed, result = self._known[trial.number]
        assert trial.seed == seed
        self.ran.append(trial.number)
        return trial, result

    def close(self) -> None: ...


class Watcher:
    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture(params=["whole", "cut"])
def cut(request: pytest.FixtureRequest) -> int:
    """How many of the journal's last trials are missing, as if the search had been stopped before them."""
    return {"whole": 0, "cut": 6}[request.param]


def journal_of(name: str, folder: Path, cut: int) -> tuple[Path, str, dict[int, tuple[int, TrialResult]]]:
    """A copy of a journal without its last trials, its identity, and what all of its trials showed."""
    path = Path(shutil.copy(HERE / f"{name}.sqlite", folder))
    with closing(sqlite3.connect(path)) as database, database:
        (identity,) = database.execute("SELECT value FROM facts WHERE name = 'identity'").fetchone()
        rows = database.execute("SELECT number, seed, outcome, signature, seconds, besides FROM trials").fetchall()
        database.execute("DELETE FROM trials WHERE number >= ?", (len(rows) - cut,))
    known = {
        number: (seed, TrialResult(outcome, signature, seconds, "", tuple(json.loads(besides or "[]"))))
        for number, seed, outcome, signature, seconds, besides in rows
    }
    return path, identity, known


def answer_of(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text())
    return document


def test_a_bisection_comes_to_the_answer_it_had(tmp_path: Path, cut: int) -> None:
    before = answer_of("bisect")
    path, identity, known = journal_of("bisect", tmp_path, cut)
    names = tuple(each["id"] for each in before["candidates"])
    source = Kept(names, known)
    with Journal(path, identity, "") as journal:
        search = Search(
            source,
            journal,
            partial(Bisector, names, confidence=0.95, seed=3),
            opening=(frozenset(names),),
            seed=3,
            max_trials=1000,
            pattern=before["signature"],
        )
        findings: Findings = search.run(Watcher())
    assert findings.answer is not None
    assert list(findings.answer.culprits) == [each["id"] for each in before["culprits"]]
    assert findings.answer.probability == pytest.approx(before["probability"], abs=1e-6)
    assert (findings.standing.trials, findings.standing.resumed) == (before["trials"], before["trials"] - cut)
    assert source.ran == sorted(known)[len(known) - cut :]


def test_a_measurement_comes_to_the_rate_it_had(tmp_path: Path, cut: int) -> None:
    before = answer_of("flake")
    path, identity, known = journal_of("flake", tmp_path, cut)
    source = Kept((), known)
    claim = parse_claim(before["claim"], before["confidence"])
    with Journal(path, identity, "") as journal:
        sampling = RateSampling(
            source,
            journal,
            enough=lambda failures, runs: claim.decided(failures, runs) is not None,
            reverted=frozenset(),
            seed=5,
            max_trials=1000,
        )
        sampled: Sampled = sampling.run(Watcher())
    tally = sampled.tally
    assert sampled.reason == before["reason"]
    assert (tally.runs, tally.failures, tally.resumed) == (before["runs"], before["failures"], before["trials"] - cut)
    assert source.ran == sorted(known)[len(known) - cut :]
