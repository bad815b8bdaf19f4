"""Trials of the candidates: each fix is reverted, and the failure is compared with the log's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specdebug.apps.triage.candidates import CandidateFix
from specdebug.campaign.loops.replay import ArmRun, Choices, Progress, plan, run_arms
from specdebug.logs.findings import Finding
from specdebug.scenario.library import Library
from specdebug.verdict.outcome import Outcome

if TYPE_CHECKING:
    from specdebug.workers.pool import WorkerPool


@dataclass(frozen=True)
class Tried:
    """A candidate that was run. ``same``: it failed with the log's very signature; ``alike``: it failed with damage of
    the log's kind, among its consequences if not first."""

    candidate: CandidateFix
    outcome: Outcome
    same: bool
    alike: bool

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.outcome.verdict != "fail":
            return self.outcome.verdict
        return "fails with the same signature" if self.same else "fails alike" if self.alike else "fails otherwise"

    def to_dict(self) -> dict[str, object]:
        """Plain data."""
        return {
            "pr": self.candidate.toggle.pr,
            "verdict": self.outcome.verdict,
            "signature": self.outcome.signature,
            "same_signature": self.same,
            "alike": self.alike,
        }


def try_out(
    pool: WorkerPool,
    library: Library,
    best: Sequence[CandidateFix],
    main: Finding,
    progress: Progress | None = None,
) -> tuple[tuple[Tried, ...], bool]:
    """Run each candidate's scenario without its fix; returns the trials and True if a Ctrl-C cut them short.

    Raises ContentError or SpecDebugError.
    """
    by_key = {str(candidate.toggle.pr): candidate for candidate in best}
    runs = [_run_of(candidate, key, library) for key, candidate in by_key.items()]
    results, interrupted = run_arms(pool, library, runs, progress)
    tried = []
    for result in results:
        same = result.outcome.signature == main.signature
        alike = same or any(violation.kind == main.means for violation in result.outcome.violations)
        tried.append(Tried(by_key[result.run.key], result.outcome, same, alike))
    return tuple(tried), interrupted


def _run_of(candidate: CandidateFix, key: str, library: Library) -> ArmRun:
    arm = candidate.arm
    choices = Choices(reverts=(candidate.toggle.pr,)) if arm is None else Choices(arms=(arm,))
    (run,) = plan(candidate.scenario, choices, library)
    return replace(run, key=key)
