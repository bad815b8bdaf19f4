"""Bisect on the engine itself: of each flaky scenario, is the fix named whose revert makes it fail?

``python benchmarks/bisect_engine.py [--seeds N] [--jobs J] [--confidence P] [NAME ...]``: among all fixes at once,
following the signature that the scenario states, by the very search that ``specdebug bisect`` runs; N searches a
scenario, each with trials of its own. Of answers at a posterior of 0.95 one in twenty may be wrong.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from specdebug.base.content import content_files
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.campaign import Campaign, Candidate
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.scenario import ScenarioSource, expected_signature
from specdebug.campaign.trials.search import CulpritSearch, Findings, Standing
from specdebug.scenario.library import Library
from specdebug.search.bisect import Bisector, openings

MAX_TRIALS = 600


class Kept:
    """A source that outlives a search: closing it only waits for what still runs."""

    def __init__(self, source: ScenarioSource) -> None:
        self._source = source
        self._running = 0

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return self._source.candidates

    @property
    def identity(self) -> str:
        return self._source.identity

    @property
    def apart(self) -> frozenset[frozenset[str]]:
        return self._source.apart

    @property
    def capacity(self) -> int:
        return self._source.capacity

    def start(self, trial: Trial) -> None:
        self._source.start(trial)
        self._running += 1

    def wait(self) -> tuple[Trial, TrialResult]:
        ended = self._source.wait()
        self._running -= 1
        return ended

    def close(self) -> None:
        while self._running:
            self.wait()


class Silent:
    """Watches without a word."""

    def moved(self, standing: Standing) -> None: ...

    def counted(self, trial: Trial, result: TrialResult, standing: Standing) -> None: ...


def find(source: Kept, pattern: str | None, seed: int, confidence: float) -> Findings:
    """One search in a journal of its own."""
    names = [candidate.id for candidate in source.candidates]
    with (
        tempfile.TemporaryDirectory() as folder,
        Journal(Path(folder) / "journal.sqlite", source.identity, "benchmark") as journal,
    ):
        search = CulpritSearch(
            source.candidates,
            lambda: Bisector(names, confidence=confidence, seed=seed, apart=source.apart),
            opening=openings(names, source.apart),
            max_trials=MAX_TRIALS,
            pattern=pattern,
        )
        return Campaign(source, journal, seed, MAX_TRIALS).search(search, Silent())


def said(findings: Findings) -> str:
    """The answer, or why there is none."""
    if findings.answer is None:
        return findings.reason if findings.trouble is None else str(findings.trouble)
    return "+".join(sorted(findings.answer.culprits)) or "no culprit"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="searches a scenario")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--confidence", type=float, default=0.95, help="posterior at which a search answers")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    library = Library()
    table = Table(title=f"bisect among {len(library.all_toggles())} fixes, {arguments.seeds} searches a scenario")
    for column in ("scenario", "culprit", "named", "trials, median (worst)", "s a trial", "otherwise"):
        table.add_column(column)
    total = 0
    names = arguments.names or [name for name in content_files("scenarios") if name.startswith("flaky_")]
    for name in names:
        scenario = library.scenario(name)
        culprit = "+".join(map(str, scenario.arms["reverted"].revert))
        source = ScenarioSource(library, scenario, jobs=arguments.jobs)
        began, trials, others = time.monotonic(), [], []
        for seed in range(arguments.seeds):
            findings = find(Kept(source), expected_signature(scenario), seed, arguments.confidence)
            trials.append(findings.standing.trials)
            if said(findings) != culprit:
                others.append(f"{said(findings)} (seed {seed})")
        source.close()
        named = arguments.seeds - len(others)
        total += named
        spent = (time.monotonic() - began) / sum(trials)
        row = (f"{named} of {arguments.seeds}", f"{statistics.median(trials):.0f} ({max(trials)})", f"{spent:.2f}")
        table.add_row(name, culprit, *row, ", ".join(others))
        print(f"{name}: named {row[0]}, trials {trials}", flush=True)
    Console(width=120).print(table)
    print(f"named {total} of {arguments.seeds * len(names)}")


if __name__ == "__main__":
    main()
