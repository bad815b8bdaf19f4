"""The detection matrix: every class of faults, injected seed by seed, and its detectors.

A run is a class's minimal scenario under one seed. An injection is **effective** when it changed something and the
class corrupts, or ends the worker: it must be caught, and a benign one must pass. The same scenarios also run clean: a
finding there is a false alarm. The **sole detector** of an injection caught it alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from specdebug.base import interrupts
from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import CannotRunHere, SpecDebugError
from specdebug.campaign.loops.replay import ArmRun, RunContent
from specdebug.campaign.loops.warm import WarmPool
from specdebug.campaign.trials.campaign import as_they_end, until_stopped
from specdebug.engine.workers.registry import LINEUP, WorkerEntry
from specdebug.faults.acts.tensors import ANYWHERE
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.minimal import BUSY, minimal
from specdebug.faults.model import NEEDS, Fault, FaultClass, Need
from specdebug.scenario.grammar import Arm, Scenario
from specdebug.targets.options import OURS
from specdebug.targets.registry import find_target
from specdebug.targets.settings import TargetChoice
from specdebug.targets.sglang.faults import SglangFaults
from specdebug.verdict.outcome import Outcome, not_engine_code
from specdebug.workers.pool import GPU_JOBS

CPU = "cpu"


@dataclass(frozen=True)
class Ground:
    """The engine to inject into, on ``device``; ``dtype`` in place of the minimal scenarios' own. ``workers``: those of
    our own engine that serve. Raises SpecDebugError for a target in which no fault can act."""

    device: str = CPU
    target: TargetChoice = DEFAULT
    dtype: str | None = None
    workers: tuple[WorkerEntry, ...] = tuple(LINEUP.values())

    def __post_init__(self) -> None:
        if self.target != DEFAULT and self._there is None:
            raise SpecDebugError(f"no fault can act in {self.target}")

    @property
    def served_by(self) -> tuple[WorkerEntry | None, ...]:
        """The workers; None stands for the one of another engine."""
        return self.workers if self.target == DEFAULT else (None,)

    def minimal(self, kind: FaultClass, site: str | None, worker: WorkerEntry | None) -> tuple[dict[str, Any], Fault]:
        """A scenario in the file's grammar that a class takes effect in there, and the fault to lay over it."""
        if (there := self._there) is None:
            return minimal(kind, site, worker=worker)
        scenario, fault = minimal(kind, site, there.new_tokens)
        scenario["engine"] |= there.options(kind.name, site)
        return scenario, replace(fault, step=there.busy if fault.step == BUSY else fault.step)

    @property
    def overrides(self) -> dict[str, Any]:
        return {"device": self.device, **({} if self.dtype is None else {"dtype": self.dtype})}

    def why_left_out(self, kind: FaultClass, worker: WorkerEntry | None) -> str:
        if (there := self._there) is not None:
            return there.lacks(kind.name) or f"no meaning in {self.target}"
        if (need := self._lacking(kind, worker)) is not None:
            return f"needs {NEEDS[need]}"
        return "acts inside captured graphs only" if self._passed(kind, worker) else f"never passes {kind.sites[0]}"

    def sites(self, kind: FaultClass, worker: WorkerEntry | None) -> tuple[str, ...] | None:
        """The sites at which a class can act; empty for one that acts at none, None for one that cannot act."""
        if self._there is None and self._lacking(kind, worker) is not None:
            return None
        found = self._passed(kind, worker) if self._there is None else self._there.sites(kind.name)
        if found and self.device != CPU:
            # what is captured calls nothing on the host
            found = tuple(site for site in found if site not in kind.captured_sites)
        return found if found or not kind.sites else None

    def _lacking(self, kind: FaultClass, worker: WorkerEntry | None) -> Need | None:
        """The first need of a class that an engine of this worker does not meet."""
        return OURS.lacking(minimal(kind, worker=worker)[0]["engine"], kind)

    def _passed(self, kind: FaultClass, worker: WorkerEntry | None) -> tuple[str, ...]:
        return tuple(site for site in kind.sites if worker is None or worker.passes(site))

    @property
    def _there(self) -> SglangFaults | None:
        return None if self.target == DEFAULT else find_target(self.target).traits.faults


PROMPT = 1  # steps within which an injection ought to be caught


@dataclass(frozen=True)
class FaultRun:
    """One class under one seed; ``name`` is that of its row."""

    seed: int
    outcome: Outcome
    name: str = "clean"

    @property
    def injected(self) -> bool:
        return any(each.changed for each in self.outcome.injections)

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
        return self.kind.name if self.site is None else f"{self.kind.name} at {self.site}"


def clean_name(worker: WorkerEntry | None) -> str:
    return f"clean{_on(worker)}"


def _on(worker: WorkerEntry | None) -> str:
    return "" if worker is None else f" on {worker.name}"


def cases(kinds: Sequence[FaultClass], ground: Ground) -> list[Case]:
    """Return the rows for these classes and the ground's workers: one each, and one for every site of those that act
    anywhere. A class acts at its first site of those that there are, or has no row."""
    each = product(kinds, ground.served_by)
    return [Case(kind, site, worker) for kind, worker in each for site in _sites(kind, ground, worker)]


def left_out(kinds: Sequence[FaultClass], ground: Ground) -> dict[Case, str]:
    each = product(kinds, ground.served_by)
    without = ((kind, worker) for kind, worker in each if not _sites(kind, ground, worker))
    return {Case(kind, None, worker): ground.why_left_out(kind, worker) for kind, worker in without}


def _sites(kind: FaultClass, ground: Ground, worker: WorkerEntry | None) -> tuple[str | None, ...]:
    """None leaves the site to the class."""
    there = ground.sites(kind, worker)
    if there is None or kind.family == ANYWHERE:
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
        return () if self.kind.effect == "benign" else tuple(run for run in self.runs if run.injected)

    def runs_to_dict(self) -> list[dict[str, Any]]:
        effective = {run.seed for run in self.effective}
        return [
            {"fault": self.case.name, "seed": run.seed, "effective": run.seed in effective, "caught": run.lags}
            for run in self.runs
        ]

    @property
    def detected(self) -> int:
        return sum(run.outcome.verdict == "fail" for run in self.effective)

    @property
    def promptly(self) -> int:
        return sum(run.lag is not None and run.lag <= PROMPT for run in self.effective if run.outcome.verdict == "fail")

    @property
    def caught_by(self) -> Counter[str]:
        return Counter(each.signature for run in self.effective for each in run.outcome.violations)

    def steps_to(self, detector: str | None = None) -> list[int]:
        """The steps from damage to a detector's finding, of the effective runs that have one; None: to the first."""
        lags = [run.lags for run in self.effective]
        if detector is None:
            return [min(each.values()) for each in lags if each]
        return [each[detector] for each in lags if detector in each]

    @property
    def sole(self) -> Counter[str]:
        """The number of runs in which each detector was the only one."""
        found = (run.outcome.violations for run in self.effective)
        return Counter(violations[0].signature for violations in found if len(violations) == 1)

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
        return {
            **self.kind.to_dict(),
            "site": self.case.site,
            "worker": None if self.case.worker is None else self.case.worker.name,
            "runs": len(self.runs),
            "effective": len(self.effective),
            "detected": self.detected,
            "within_a_step": self.promptly,
            "worst_lag": max(self.steps_to(), default=None),
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
        return len(self.outcomes)

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
    def caught_by(self) -> Counter[str]:
        return sum((check.caught_by for check in self.checks), Counter[str]())

    @property
    def sole(self) -> dict[str, tuple[Case, ...]]:
        """The rows of which a detector caught some injection alone, by detector."""
        names = sorted({name for check in self.checks for name in check.sole})
        return {name: tuple(check.case for check in self.checks if name in check.sole) for name in names}

    @property
    def outcomes(self) -> list[Outcome]:
        return [run.outcome for run in (*self.clean, *(run for check in self.checks for run in check.runs))]

    @property
    def not_engine_code(self) -> list[str]:
        return not_engine_code(self.outcomes)

    @property
    def idle_probes(self) -> tuple[str, ...]:
        """The sites that were reached and caught nothing."""
        outcomes = self.outcomes
        reached = {site for outcome in outcomes for site, count in outcome.reached_sites.items() if count}
        return tuple(sorted(reached - {violation.site for outcome in outcomes for violation in outcome.violations}))

    @property
    def exit_code(self) -> int:
        """0 when all damage was seen and nothing else was, 1 when not, 128 + N after signal N, the trouble's own."""
        if self.trouble is not None:
            return self.trouble.exit_code
        return interrupts.exit_code() if self.interrupted else int(bool(self.problems))

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


EMBEDDED = Ground()
HANG_ELSEWHERE_S = 20.0  # the limit of a run that is to hang, away from the CPU: it also loads, and starts the device


@dataclass(frozen=True)
class MatrixStanding:
    """The progress of a matrix. ``problems`` are those of the run that ended last."""

    planned: int
    made: int = 0
    effective: int = 0
    detected: int = 0
    found_wrong: int = 0
    problems: tuple[str, ...] = ()

    def after(self, one: FaultMatrix) -> MatrixStanding:
        return MatrixStanding(
            self.planned,
            self.made + 1,
            self.effective + one.effective,
            self.detected + one.detected,
            self.found_wrong + len(one.problems),
            one.problems,
        )


def verify(
    kinds: Sequence[FaultClass],
    seeds: int,
    jobs: int,
    library: RunContent,
    moved: Callable[[MatrixStanding], None] = lambda standing: None,
    ground: Ground = EMBEDDED,
) -> FaultMatrix:
    """Run the matrix, and tell its progress at the beginning and whenever a run has ended. After a Ctrl-C, or when no
    worker can be started any more, it has the runs that had ended.

    Raises ContentError when the shipped content is malformed. If this machine lacks the device, say, of the first run,
    that is the matrix's trouble.
    """
    rows = cases(kinds, ground)
    if ground.device != CPU:
        jobs = jobs or GPU_JOBS
    runs = plan(rows, seeds, library, ground)
    named = {row.name: row for row in rows}
    clean = [clean_name(worker) for worker in ground.served_by]
    results: dict[str, list[FaultRun]] = {name: [] for name in (*clean, *named)}

    def whole() -> None:
        standing = MatrixStanding(len(runs))
        with WarmPool(matrix_scenario(rows, ground), clean, jobs=jobs) as pool:
            moved(standing)
            for result in as_they_end(pool, _foreseen(pool, runs)):
                if result.outcome.unavailable and not standing.made:
                    raise CannotRunHere(result.outcome.detail)
                # without its requests and its log: there are thousands of runs
                outcome = replace(result.outcome, requests=(), log_tail="", stack={})
                run, row = FaultRun(result.run.seed, outcome, result.run.arm), named.get(result.run.arm)
                results[run.name].append(run)
                alone = FaultMatrix((), (run,)) if row is None else FaultMatrix((CaseCheck(row, (run,)),), ())
                standing = standing.after(alone)
                moved(standing)

    stopped, trouble = until_stopped(whole)
    ordered = {name: tuple(sorted(ended, key=lambda run: run.seed)) for name, ended in results.items()}
    checks = tuple(CaseCheck(row, ordered[row.name]) for row in rows)
    missing = len(runs) - sum(map(len, ordered.values()))
    undamaged = tuple(run for name in clean for run in ordered[name])
    return FaultMatrix(checks, undamaged, missing, stopped == "interrupted", trouble, left_out(kinds, ground))


def plan(rows: Sequence[Case], seeds: int, library: RunContent, ground: Ground = EMBEDDED) -> list[ArmRun]:
    """Return the runs of the matrix, seed by seed and worker by worker: a clean one, and each class under each seed.

    The sites of a class that has a row for each share its seeds; with fewer seeds than sites, some share a seed.
    """
    scenario = matrix_scenario(rows, ground)
    packs = library.packs(scenario.probes)
    planned = {row.name: _of_arm(scenario, row, ground) for row in rows}
    planned |= {name: _alone_in(scenario, name) for name in map(clean_name, ground.served_by)}
    return [
        ArmRun(key=f"{name}/{seed}", scenario=planned[name], arm=name, seed=seed, packs=packs)
        for seed in range(seeds)
        for worker in ground.served_by
        for name in (
            clean_name(worker),
            *(row.name for row in rows if row.worker == worker and _due(row, ground, seed, seeds)),
        )
    ]


def matrix_scenario(rows: Sequence[Case], ground: Ground = EMBEDDED) -> Scenario:
    """Return one scenario with every row's minimal one as an arm, so that they share their workers' models."""
    arms = {}
    for worker in ground.served_by:
        own, _ = ground.minimal(CLASSES["nan_logits"], None, worker)
        arms[clean_name(worker)] = Arm(clean_name(worker), engine=own["engine"])
    for row in rows:
        own, fault = ground.minimal(row.kind, row.site, row.worker)
        arms[row.name] = Arm(row.name, engine=own["engine"], faults=(fault,))
    base = Scenario.from_dict({**ground.minimal(CLASSES["nan_logits"], None, None)[0], "name": "fault-matrix"})
    return replace(base, arms=arms, expect={}, overrides=ground.overrides).on(ground.target)


def _due(row: Case, ground: Ground, seed: int, seeds: int) -> bool:
    if row.kind.family != ANYWHERE or row.site is None:
        return True
    sites = ground.sites(row.kind, row.worker) or ()
    turns = min(len(sites), seeds)
    return seed % turns == sites.index(row.site) % turns


def _alone_in(scenario: Scenario, arm: str) -> Scenario:
    return replace(scenario, arms={arm: scenario.arms[arm]})


def _of_arm(scenario: Scenario, row: Case, ground: Ground) -> Scenario:
    """Return the matrix's scenario with a row's arm alone, and with that arm's workload and limits."""
    own = Scenario.from_dict(ground.minimal(row.kind, row.site, row.worker)[0])
    limits = own.limits
    if scenario.overrides["device"] != CPU:
        limits = replace(limits, timeout_s=max(limits.timeout_s, HANG_ELSEWHERE_S))
    return replace(_alone_in(scenario, row.name), workload=own.workload, limits=limits)


def _foreseen(pool: WarmPool, runs: Sequence[ArmRun]) -> Iterator[ArmRun]:
    """Yield the runs; before each clean one, which comes before all others of its seed and worker, its requests' right
    text is worked out for them."""
    for run in runs:
        if not run.scenario.faults_of(run.arm):
            pool.foresee(run)
        yield run
