"""The detection matrix: every class of faults, injected seed by seed, and what caught it.

A run of the matrix is a class's minimal scenario under one seed. What is injected there is **effective** when the
ledger says that it changed something and the class is one that corrupts, or ends the worker. An effective injection
must be caught, by whatever looks: a probe, a guard, an oracle, the engine's own checks or the worker's end. A benign
one must pass. Beside the faults the same scenarios run clean: whatever is found there is a false alarm.

The one that caught an injection alone, of all that look, is its **sole detector**: without it the fault would have
passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdebug import interrupts
from specdebug.errors import SpecDebugError
from specdebug.faults.acts import anywhere
from specdebug.faults.model import FaultClass
from specdebug.verdict.outcome import Outcome, Verdict

PROMPT = 1
"""Steps within which an injection ought to be caught."""


@dataclass(frozen=True)
class FaultRun:
    """One class under one seed."""

    seed: int
    outcome: Outcome

    @property
    def injected(self) -> bool:
        """Return whether anything was done that changed something."""
        return any(each.changed for each in self.outcome.injections)

    @property
    def verdict(self) -> Verdict:
        return self.outcome.verdict

    @property
    def detectors(self) -> tuple[str, ...]:
        """Everything that found something, as signatures, what came first first."""
        return tuple(violation.signature for violation in self.outcome.violations)

    @property
    def lags(self) -> dict[str, int]:
        """Of everything that found something, how many steps after the first injection; empty without one."""
        done = min((each.step for each in self.outcome.injections if each.changed), default=None)
        if done is None:
            return {}
        violations = self.outcome.violations
        last = max((found.step for found in violations if found.step is not None), default=done)
        # Without a step is the worker's end: it comes after all else, and alone it happened where it was done.
        return {each.signature: max((last if each.step is None else each.step) - done, 0) for each in violations}

    @property
    def lag(self) -> int | None:
        """Steps from the first injection to the first finding; None where there is no such pair."""
        return min(self.lags.values(), default=None)


@dataclass(frozen=True)
class Case:
    """The subject of a row of the matrix: a class, and the site where it acts if that is not left to the class."""

    kind: FaultClass
    site: str | None = None

    @property
    def name(self) -> str:
        return self.kind.name if self.site is None else f"{self.kind.name} at {self.site}"


def cases(kinds: Sequence[FaultClass], captured: bool = False) -> list[Case]:
    """Rows for these classes: one each, and one for every site of those that act anywhere.

    Where graphs are ``captured``, no site inside one: a class then acts at its first other site, or has no row.
    """
    return [Case(kind, site) for kind in kinds for site in _sites(kind, captured)]


def _sites(kind: FaultClass, captured: bool) -> tuple[str | None, ...]:
    """None leaves the site to the class."""
    open_ones = tuple(site for site in kind.sites if not (captured and site in kind.captured_sites))
    if kind.family == anywhere.FAMILY:
        return open_ones
    return (None,) if open_ones[:1] == kind.sites[:1] else open_ones[:1]


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
        """Runs in which damage was done that must be seen."""
        return () if self.kind.effect == "benign" else tuple(run for run in self.runs if run.injected)

    def runs_to_dict(self) -> list[dict[str, Any]]:
        """Every run as plain data, as ``report.detection`` reads it."""
        effective = {run.seed for run in self.effective}
        return [
            {"fault": self.case.name, "seed": run.seed, "effective": run.seed in effective, "caught": run.lags}
            for run in self.runs
        ]

    @property
    def detected(self) -> int:
        """Effective runs in which something was found."""
        return sum(run.verdict == "fail" for run in self.effective)

    @property
    def promptly(self) -> int:
        """Those of them in which it was found within a step."""
        return sum(run.lag is not None and run.lag <= PROMPT for run in self.effective if run.verdict == "fail")

    @property
    def caught_by(self) -> Counter[str]:
        """In how many runs each detector found something."""
        return Counter(name for run in self.effective for name in run.detectors)

    @property
    def sole(self) -> Counter[str]:
        """In how many runs each detector was the only one."""
        return Counter(run.detectors[0] for run in self.effective if len(run.detectors) == 1)

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong with the row, a line each: damage that nothing saw, alarm about none, nothing
        injected."""
        said = []
        for run in self.runs:
            label = f"{self.case.name}, seed {run.seed}"
            if not run.injected:
                said.append(f"{label}: {run.outcome.detail or 'nothing was injected'}")
            elif self.kind.effect == "benign" and run.verdict != "pass":
                said.append(f"{label}: benign, but {run.verdict} {run.outcome.signature or run.outcome.detail}")
            elif self.kind.effect != "benign" and run.verdict != "fail":
                said.append(f"{label}: {run.outcome.injections[0]}, and nothing saw it")
        return tuple(said)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        lags = [run.lag for run in self.effective if run.lag is not None]
        return {
            **self.kind.to_dict(),
            "site": self.case.site,
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

    ``missing``: runs that were planned and not made, because of a Ctrl-C (``interrupted``) or of ``trouble``.
    ``left_out``: classes that cannot act on this device.
    """

    checks: tuple[CaseCheck, ...]
    clean: tuple[FaultRun, ...]
    missing: int = 0
    interrupted: bool = False
    trouble: SpecDebugError | None = None
    left_out: tuple[str, ...] = ()

    @property
    def made(self) -> int:
        """Runs made."""
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
        """Return what was found, or not decided, where nothing was done."""
        return tuple(
            f"clean, seed {run.seed}: {run.outcome.signature or run.outcome.detail}"
            for run in self.clean
            if run.verdict != "pass"
        )

    @property
    def problems(self) -> tuple[str, ...]:
        return (*(line for check in self.checks for line in check.problems), *self.false_alarms)

    @property
    def sole(self) -> dict[str, tuple[str, ...]]:
        """By detector: rows of which it caught some injection alone."""
        found: dict[str, list[str]] = {}
        for check in self.checks:
            for name in check.sole:
                found.setdefault(name, []).append(check.case.name)
        return {name: tuple(rows) for name, rows in sorted(found.items())}

    @property
    def idle_probes(self) -> tuple[str, ...]:
        """Sites that were reached and caught nothing of what was injected here."""
        runs = [*self.clean, *(run for check in self.checks for run in check.runs)]
        reached = {site for run in runs for site, count in run.outcome.reached_sites.items() if count}
        caught = {violation.site for run in runs for violation in run.outcome.violations}
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
        """Plain data."""
        return {
            "exit_code": self.exit_code,
            "interrupted": self.interrupted,
            "missing_runs": self.missing,
            "left_out": list(self.left_out),
            "effective": self.effective,
            "detected": self.detected,
            "within_a_step": self.promptly,
            "clean_runs": len(self.clean),
            "clean_steps": self.clean_steps,
            "false_alarms": list(self.false_alarms),
            "sole": {name: list(rows) for name, rows in self.sole.items()},
            "idle_probes": list(self.idle_probes),
            "rows": [check.to_dict() for check in self.checks],
            "runs": [run for check in self.checks for run in check.runs_to_dict()],
        }
