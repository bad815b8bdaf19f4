"""Warm arms, the parent's side: run arms of some scenarios, over and over, at a fraction of a fresh arm's cost.

A :class:`WarmPool` starts and waits arm by arm, so that a search can choose the next arm by the last one's result."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.replay import ArmListener, ArmResult, ArmRun, DeviceWatch, nested
from specdebug.campaign.preload import PRELOAD
from specdebug.patching.toggles import Toggle
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.workload import Common, Foreseen
from specdebug.targets.launch.keeper import MAX_IDLE, ServerKeeper
from specdebug.targets.launch.target import LaunchTarget
from specdebug.targets.registry import find_target
from specdebug.workers.job import Job, WorkerEnd
from specdebug.workers.machine_failure import MachineFailed, MachineFailure
from specdebug.workers.pool import WorkerPool


class KeptServers:
    """The servers that runs of a search start, kept for those that come after, by a process that starts once the first
    run needs one. ``jobs``: runs at a time, each of which may come back for its server."""

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs
        self._keeper: ServerKeeper | None = None

    def kept(self, run: ArmRun) -> ArmRun:
        """Return the run on a server that is kept, if it starts one. Raises NoServer."""
        if not isinstance(find_target(run.target), LaunchTarget):
            return run
        if self._keeper is None:
            self._keeper = ServerKeeper(max(MAX_IDLE, self._jobs))
        return dataclasses.replace(run, keeper=self._keeper.address)

    def close(self) -> None:
        """End every server. May be called more than once."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None


TARGET = "specdebug.run.warm_worker:run_warm"
PREPARE = "specdebug.run.warm_worker:prepare"
FORESEE = "specdebug.run.warm_worker:foresee"


class ArmAtFault(SpecDebugError):
    """A worker found the scenario, or the options laid over it, wrong: its run has no result."""

    def __init__(self, run: ArmRun, error: SpecDebugError) -> None:
        super().__init__(str(error))
        self.run = run


class ArmLost(MachineFailed):
    """The machine failed an arm, and it is of no use to run it again."""

    def __init__(self, run: ArmRun, failure: MachineFailure) -> None:
        super().__init__(failure)
        self.run = run


class WarmPool:
    """Runs arms of its scenarios. A context manager: leaving it ends every worker.

    ``arms`` are those that will be run, ``toggles`` the fixes that may be reverted; ``also``: the same of further
    scenarios. Others work, but slowly.
    """

    def __init__(
        self,
        scenario: Scenario,
        arms: Sequence[str],
        toggles: Sequence[Toggle] = (),
        jobs: int = 1,
        also: Sequence[Common] = (),
    ) -> None:
        commons = (Common(scenario, tuple(arms), tuple(toggles)), *also)
        self._pool = WorkerPool(jobs, PRELOAD, (PREPARE, commons))
        self._listener = _Collected()
        self._watch = DeviceWatch(self._pool, self._listener)
        self._servers = KeptServers()
        self._again: set[str] = set()
        self.rerun = 0  # the number of arms that were begun again because the machine failed them

    def __enter__(self) -> WarmPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def capacity(self) -> int:
        """The most arms that run at a time."""
        return self._pool.limit

    def foresee(self, run: ArmRun) -> None:
        """Work out the reference's view of this run's requests once for all arms started from now on that serve them.

        Arms of other seeds work as before. Raises WorkerStartError.
        """
        self._pool.prepare(FORESEE, Foreseen(run.scenario, run.arm, run.seed))

    def start(self, run: ArmRun) -> None:
        """Begin an arm and return; keys of arms under way must differ. Raises WorkerStartError or MachineFailed."""
        self._listener.runs[run.key] = run
        # Unlike a fresh arm's, its requests are planned in the worker: workers are many, the parent is one.
        job = self._servers.kept(run).job_of(TARGET, model=run.asked.model)
        self._pool.launch(nested(run, job))

    def wait(self) -> ArmResult:
        """Return the result of the next arm to end, at least one being under way.

        An arm that the machine failed is run once more if its device answers again, or if its worker was killed.
        One that hung on a device is lost, too, if that does not answer any more. Raises ArmLost for arms that are lost,
        ArmAtFault, or WorkerStartError when there can be no workers.
        """
        while True:
            while not self._listener.ended_runs:
                self._pool.turn(self._watch)
            ended = self._listener.ended_runs.popleft()
            if isinstance(ended, ArmAtFault):
                raise ended
            result, failure = ended
            run, hung = result.run, result.outcome.signature == "hang"
            if failure is not None:
                if not hung and (failure.cause not in ("device", "killed") or run.key in self._again):
                    raise ArmLost(run, failure)
                if failure.cause == "device":
                    self._watch.doubt(run.asked.device, failure)
                    if (gone := self._watch.gone(run.asked.device)) is not None:
                        raise ArmLost(run, gone if hung else failure)
            if failure is None or hung:
                self._again.discard(run.key)
                return result
            self.rerun += 1
            self._again.add(run.key)
            self.start(run)

    def close(self) -> None:
        """End whatever runs. May be called more than once."""
        self._pool.close()
        self._servers.close()


class _Collected(ArmListener):
    """The ends of arms, in the order in which they came: a fault of the scenario, or a result with the machine's
    failure that it is; of an arm that hung on a device, that it would be if the device does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.ended_runs: deque[ArmAtFault | tuple[ArmResult, MachineFailure | None]] = deque()

    def ended(self, job: Job, end: WorkerEnd) -> None:
        run, outcome = self.runs[job.name], self.ledgers[job.name].outcome(end)
        failure = self.failure_of(job, outcome) if outcome.verdict == "unknown" else None
        if outcome.signature == "hang":
            failure = self.doubt_of(job, end)
        fault = self.fault_of(job)
        self.ended_runs.append((ArmResult(run, outcome), failure) if fault is None else ArmAtFault(run, fault))
        del self.runs[job.name], self.ledgers[job.name]
