"""The detection matrix: every class of faults, injected seed by seed, and its detectors.

A run of the matrix is a class's minimal scenario under one seed. An injection is **effective** when the ledger says
that it changed something and the class is one that corrupts, or ends the worker. An effective injection must be caught,
by a probe, a guard, an oracle, the engine's own checks or the worker's end. A benign one must pass. The same scenarios
also run clean: a finding there is a false alarm.

The **sole detector** of an injection caught it alone: without it the fault would have passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.fault_ground import Ground
from specdebug.engine.workers.registry import WorkerEntry
from specdebug.faults.acts import anywhere
from specdebug.faults.model import FaultClass
from specdebug.verdict.outcome import Outcome, not_engine_code

PROMPT = 1
"""Steps within which an injection ought to be caught."""


@dataclass(frozen=True)
class FaultRun:
    """One class under one seed; ``name`` is that of its row."""

    seed: int
    outcome: Outcome
    name: str = "clean"

    @property
    def injected(self) -> bool:
        """Return True if an injection changed something."""
        return any(each.changed for each in self.outcome.injections)

    @property
    def detectors(self) -> tuple[str, ...]:
        """The signatures of the findings, the first one first."""
        return tuple(violation.signature for violation in self.outcome.violations)

    @property
    def lags(self) -> dict[str, int]:
        """The steps from the first injection to each finding, by signature; empty without an injection."""
        done = min((each.step for each in self.outcome.injections if each.changed), default=None)
        if done is None:
            return {}
        violations = self.outcome.violations
        last = max((found.step for found in violations if found.step is not None), default=done)
        # A finding without a step is the worker's end: it comes after all others, and alone it has no lag.
        return {each.signature: max((last if each.step is None else each.step) - done, 0) for each in violations}

    @property
    def lag(self) -> int | None:
        """The steps from the first injection to the first finding; None where there is no such pair."""
        return min(self.lags.values(), default=None)


@dataclass(frozen=True)
class Case:
    """The subject of a row of the matrix: a class, its site if that is not left to the class, and the worker that
    serves, None for the one of another engine."""

    kind: FaultClass
    site: str | None = None
    worker: WorkerEntry | None = None

    @property
    def name(self) -> str:
        return f"{self.damage}{_on(self.worker)}"

    @property
    def damage(self) -> str:
        """What is done, whichever worker serves."""
        return self.kind.name if self.site is None else f"{self.kind.name} at {self.site}"


def clean_name(worker: WorkerEntry | None) -> str:
    """The name of a worker's runs without a fault."""
    return f"clean{_on(worker)}"


def _on(worker: WorkerEntry | None) -> str:
    return "" if worker is None else f" on {worker.name}"


def cases(kinds: Sequence[FaultClass], ground: Ground) -> list[Case]:
    """Return the rows for these classes and the ground's workers: one each, and one for every site of those that act
    anywhere.

    A class acts at its first site of those that there are, or has no row.
    """
    return [
        Case(kind, site, worker)
        for kind in kinds
        for worker in ground.served_by
        for site in _sites(kind, ground, worker)
    ]


def left_out(kinds: Sequence[FaultClass], ground: Ground) -> dict[Case, str]:
    """Return what has no row, and why."""
    return {
        Case(kind, None, worker): ground.why_left_out(kind, worker)
        for kind in kinds
        for worker in ground.served_by
        if not _sites(kind, ground, worker)
    }


def _sites(kind: FaultClass, ground: Ground, worker: WorkerEntry | None) -> tuple[str | None, ...]:
    """None leaves the site to the class."""
    there = ground.sites(kind, worker)
    if there is None or kind.family == anywhere.FAMILY:
        return there or ()
    return (None,) if there[:1] == kind.sites[:1] else there[:1]


@dataclass(frozen=True)
class CaseCheck:
    """One row of the matrix."""

    case: Case
    runs: tuple[FaultRun, ...]

    @property
    def kind(self) -> FaultClass:
        return self.case.kind

    @property
    def effective(self) -> tuple[FaultRun, ...]:
        """The runs with damage that must be seen."""
        return () if self.kind.effect == "benign" else tuple(run for run in self.runs if run.injected)

    def runs_to_dict(self) -> list[dict[str, Any]]:
        """Return every run as plain data, as ``report.detection`` reads it."""
        effective = {run.seed for run in self.effective}
        return [
            {"fault": self.case.name, "seed": run.seed, "effective": run.seed in effective, "caught": run.lags}
            for run in self.runs
        ]

    @property
    def detected(self) -> int:
        """The number of effective runs with a finding."""
        return sum(run.outcome.verdict == "fail" for run in self.effective)

    @property
    def promptly(self) -> int:
        """The number of those with a finding within a step."""
        return sum(run.lag is not None and run.lag <= PROMPT for run in self.effective if run.outcome.verdict == "fail")

    @property
    def caught_by(self) -> Counter[str]:
        """The number of runs in which each detector found something."""
        return Counter(name for run in self.effective for name in run.detectors)

    @property
    def sole(self) -> Counter[str]:
        """The number of runs in which each detector was the only one."""
        return Counter(run.detectors[0] for run in self.effective if len(run.detectors) == 1)

    @property
    def problems(self) -> tuple[str, ...]:
        """The row's problems, a line each: damage that nothing saw, a false alarm, nothing injected."""
        said = []
        for run in self.runs:
            label = f"{self.case.name}, seed {run.seed}"
            if not run.injected:
                said.append(f"{label}: {run.outcome.detail or 'nothing was injected'}")
            elif self.kind.effect == "benign" and run.outcome.verdict != "pass":
                said.append(f"{label}: benign, but {run.outcome.verdict} {run.outcome.signature or run.outcome.detail}")
            elif self.kind.effect != "benign" and run.outcome.verdict != "fail":
                said.append(f"{label}: {run.outcome.injections[0]}, and nothing saw it")
        return tuple(said)

    def to_dict(self) -> dict[str, Any]:
        lags = [run.lag for run in self.effective if run.lag is not None]
        return {
            **self.kind.to_dict(),
            "site": self.case.site,
            "worker": None if self.case.worker is None else self.case.worker.name,
            "runs": len(self.runs),
            "effective": len(self.effective),
            "detected": self.detected,
            "within_a_step": self.promptly,
            "worst_lag": max(lags, default=None),
            "caught_by": dict(self.caught_by.most_common()),
            "sole": dict(self.sole.most_common()),
            "problems": list(self.problems),
        }


@dataclass(frozen=True)
class FaultMatrix:
    """All rows, and the clean runs beside them.

    ``missing`` is the number of planned runs not made because of a Ctrl-C (``interrupted``) or ``trouble``,
    ``left_out`` has the rows of classes that cannot act there, each with why.
    """

    checks: tuple[CaseCheck, ...]
    clean: tuple[FaultRun, ...]
    missing: int = 0
    interrupted: bool = False
    trouble: SpecDebugError | None = None
    left_out: Mapping[Case, str] = field(default_factory=dict)

    @property
    def made(self) -> int:
        return len(self.clean) + sum(len(check.runs) for check in self.checks)

    @property
    def effective(self) -> int:
        return sum(len(check.effective) for check in self.checks)

    @property
    def detected(self) -> int:
        return sum(check.detected for check in self.checks)

    @property
    def promptly(self) -> int:
        return sum(check.promptly for check in self.checks)

    @property
    def clean_steps(self) -> int:
        return sum(run.outcome.metrics.steps for run in self.clean)

    @property
    def false_alarms(self) -> tuple[str, ...]:
        """The clean runs that did not pass, a line each."""
        return tuple(
            f"{run.name}, seed {run.seed}: {run.outcome.signature or run.outcome.detail}"
            for run in self.clean
            if run.outcome.verdict != "pass"
        )

    @property
    def problems(self) -> tuple[str, ...]:
        return (*(line for check in self.checks for line in check.problems), *self.false_alarms)

    @property
    def sole(self) -> dict[str, tuple[Case, ...]]:
        """The rows of which a detector caught some injection alone, by detector."""
        pairs = sorted(((name, check.case) for check in self.checks for name in check.sole), key=itemgetter(0))
        return {name: tuple(row for _, row in rows) for name, rows in groupby(pairs, key=itemgetter(0))}

    @property
    def outcomes(self) -> list[Outcome]:
        return [run.outcome for run in (*self.clean, *(run for check in self.checks for run in check.runs))]

    @property
    def not_engine_code(self) -> list[str]:
        """The parts of any run that were not the engine's own code."""
        return not_engine_code(self.outcomes)

    @property
    def idle_probes(self) -> tuple[str, ...]:
        """The sites that were reached and caught nothing."""
        outcomes = self.outcomes
        reached = {site for outcome in outcomes for site, count in outcome.reached_sites.items() if count}
        caught = {violation.site for outcome in outcomes for violation in outcome.violations}
        return tuple(sorted(reached - caught))

    @property
    def exit_code(self) -> int:
        """0 when all damage was seen and nothing else was, 1 when not, 128 + N after signal N, the trouble's own."""
        if self.trouble is not None:
            return self.trouble.exit_code
        if self.interrupted:
            return interrupts.exit_code()
        return 1 if self.problems else 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "exit_code": self.exit_code,
            "interrupted": self.interrupted,
            "missing_runs": self.missing,
            "left_out": {case.name: why for case, why in self.left_out.items()},
            "effective": self.effective,
            "detected": self.detected,
            "within_a_step": self.promptly,
            "clean_runs": len(self.clean),
            "clean_steps": self.clean_steps,
            "false_alarms": list(self.false_alarms),
            "sole": {name: [row.name for row in rows] for name, rows in self.sole.items()},
            "idle_probes": list(self.idle_probes),
            "not_engine_code": self.not_engine_code,
            "rows": [check.to_dict() for check in self.checks],
            "runs": [run for check in self.checks for run in check.runs_to_dict()],
        }
