"""The runs that a detection matrix is made of: planned seed by seed, made in warm workers.

All runs of a seed and a worker serve the same requests, and most come out right. So their processes are forked from a
server that already has the reference's view of the right text (``WarmPool.foresee``); an oracle still looks at every
step of every run, and computes what went otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from specdebug.base.errors import CannotRunHere, SpecDebugError
from specdebug.campaign.loops.fault_ground import CPU, Ground
from specdebug.campaign.loops.fault_matrix import Case, CaseCheck, FaultMatrix, FaultRun, cases, clean_name, left_out
from specdebug.campaign.loops.replay import ArmResult, ArmRun, RunContent
from specdebug.campaign.loops.warm import WarmPool
from specdebug.campaign.trials.source import as_they_end
from specdebug.faults.acts import anywhere
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.model import FaultClass
from specdebug.scenario.grammar import Arm, Scenario
from specdebug.workers.pool import GPU_JOBS

EMBEDDED = Ground()
HANG_ELSEWHERE_S = 20.0
"""The limit of a run that is to hang, away from the CPU: it also loads, and starts the device."""


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
        """Return the progress one run later; ``one`` is the matrix of that run alone."""
        return MatrixStanding(
            self.planned,
            self.made + 1,
            self.effective + one.effective,
            self.detected + one.detected,
            self.found_wrong + len(one.problems),
            one.problems,
        )


class MatrixWatcher(Protocol):
    """A watcher of a matrix, told at the beginning and whenever a run has ended."""

    def moved(self, standing: MatrixStanding) -> None: ...


def verify(
    kinds: Sequence[FaultClass],
    seeds: int,
    jobs: int,
    library: RunContent,
    watcher: MatrixWatcher | None = None,
    ground: Ground = EMBEDDED,
) -> FaultMatrix:
    """Run the matrix. After a Ctrl-C, or when no worker can be started any more, it has the runs that had ended.

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
    standing = MatrixStanding(len(runs))
    interrupted, trouble = False, None
    try:
        with WarmPool(matrix_scenario(rows, ground), clean, jobs=jobs) as pool:
            if watcher is not None:
                watcher.moved(standing)
            for result in as_they_end(pool, _foreseen(pool, runs)):
                if result.outcome.unavailable and not standing.made:
                    raise CannotRunHere(result.outcome.detail)
                run = _kept(result)
                results[result.run.arm].append(run)
                standing = standing.after(_alone(named.get(result.run.arm), run))
                if watcher is not None:
                    watcher.moved(standing)
    except KeyboardInterrupt:
        interrupted = True
    except SpecDebugError as error:
        trouble = error
    ordered = {name: tuple(sorted(ended, key=lambda run: run.seed)) for name, ended in results.items()}
    checks = tuple(CaseCheck(row, ordered[row.name]) for row in rows)
    missing = len(runs) - sum(map(len, ordered.values()))
    undamaged = tuple(run for name in clean for run in ordered[name])
    return FaultMatrix(checks, undamaged, missing, interrupted, trouble, left_out(kinds, ground))


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
    return dataclasses.replace(base, arms=arms, expect={}, overrides=ground.overrides).on(ground.target)


def _due(row: Case, ground: Ground, seed: int, seeds: int) -> bool:
    if row.kind.family != anywhere.FAMILY or row.site is None:
        return True
    sites = ground.sites(row.kind, row.worker) or ()
    turns = min(len(sites), seeds)
    return seed % turns == sites.index(row.site) % turns


def _alone_in(scenario: Scenario, arm: str) -> Scenario:
    return dataclasses.replace(scenario, arms={arm: scenario.arms[arm]})


def _of_arm(scenario: Scenario, row: Case, ground: Ground) -> Scenario:
    """Return the matrix's scenario with a row's arm alone, and with that arm's workload and limits."""
    own = Scenario.from_dict(ground.minimal(row.kind, row.site, row.worker)[0])
    limits = own.limits
    if scenario.overrides["device"] != CPU:
        limits = dataclasses.replace(limits, timeout_s=max(limits.timeout_s, HANG_ELSEWHERE_S))
    return dataclasses.replace(_alone_in(scenario, row.name), workload=own.workload, limits=limits)


def _foreseen(pool: WarmPool, runs: Sequence[ArmRun]) -> Iterator[ArmRun]:
    """Yield the runs; before each clean one, which comes before all others of its seed and worker, its requests' right
    text is worked out for them."""
    for run in runs:
        if not run.scenario.faults_of(run.arm):
            pool.foresee(run)
        yield run


def _kept(result: ArmResult) -> FaultRun:
    """Return the run without its requests and its log: there are thousands of runs."""
    outcome = dataclasses.replace(result.outcome, requests=(), log_tail="", stack={})
    return FaultRun(result.run.seed, outcome, result.run.arm)


def _alone(row: Case | None, run: FaultRun) -> FaultMatrix:
    return FaultMatrix((), (run,)) if row is None else FaultMatrix((CaseCheck(row, (run,)),), ())
