"""Warm arms, the parent's side: run arms of one scenario, over and over, at a fraction of a fresh arm's cost.

A :class:`WarmPool` starts and waits arm by arm rather than running a list, so that whoever decides what to run next can
look at what came of the last.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from specdebug.errors import SpecDebugError
from specdebug.loops.device_watch import DeviceWatch
from specdebug.loops.replay import ArmResult, ArmRun
from specdebug.run.preload import PRELOAD
from specdebug.run.warm_worker import Common, Foreseen
from specdebug.verdict.ledger import Ledger
from specdebug.workers.job import Job, WorkerEnd
from specdebug.workers.machine_failure import MachineFailed, MachineFailure
from specdebug.workers.pool import WorkerPool

if TYPE_CHECKING:
    from specdebug.scenario.grammar import Scenario
    from specdebug.toggles import Toggle

TARGET = "specdebug.run.warm_worker:run_warm"
PREPARE = "specdebug.run.warm_worker:prepare"
FORESEE = "specdebug.run.warm_worker:foresee"


class ArmAtFault(SpecDebugError):
    """A worker found the scenario, or what was laid over it, wrong: its run came to nothing."""

    def __init__(self, run: ArmRun, error: SpecDebugError) -> None:
        super().__init__(str(error))
        self.run = run


class WarmPool:
    """Runs arms of one scenario. A context manager: leaving it ends every worker."""

    def __init__(self, scenario: Scenario, arms: Sequence[str], toggles: Sequence[Toggle] = (), jobs: int = 1) -> None:
        """``arms``: those that will be run; ``toggles``: the fixes that may be reverted. Others work, but slowly."""
        common = Common(scenario, tuple(arms), tuple(toggles))
        self._pool = WorkerPool(jobs, PRELOAD, (PREPARE, common))
        self._listener = _Collected()
        self._watch = DeviceWatch(self._pool, self._listener)
        self._again: set[str] = set()
        self._rerun = 0

    def __enter__(self) -> WarmPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def capacity(self) -> int:
        """Return how many arms may run at a time."""
        return self._pool.limit

    @property
    def rerun(self) -> int:
        """Return how many arms the machine failed that were begun again."""
        return self._rerun

    def foresee(self, run: ArmRun) -> None:
        """Say that arms started from now on serve this run's requests, under its seed: what the reference says of their
        right text is then worked out once, not in every arm. Any other arm works as before. Raises WorkerStartError.
        """
        self._pool.prepare(FORESEE, Foreseen(run.scenario, run.arm, run.seed))

    def start(self, run: ArmRun) -> None:
        """Begin an arm and return; keys of arms under way must differ. Raises WorkerStartError or MachineFailed."""
        self._listener.runs[run.key] = run
        self._pool.launch(job(run))

    def wait(self) -> ArmResult:
        """The next arm to end, at least one being under way. Raises ArmAtFault, or WorkerStartError when there can be
        no workers.

        An arm that the machine failed is no result. It is run once more if its device answers again, or if somebody
        killed its worker; else, or if the machine fails it again, MachineFailed is raised.
        """
        while True:
            ended = self._next()
            if isinstance(ended, ArmAtFault):
                raise ended
            if isinstance(ended, ArmResult):
                self._again.discard(ended.run.key)
                return ended
            run, failure = ended
            if failure.cause not in ("device", "killed") or run.key in self._again:
                raise MachineFailed(failure)
            if failure.cause == "device":
                self._watch.doubt(run.asked.device, failure)
                if self._watch.gone(run.asked.device) is not None:
                    raise MachineFailed(failure)
            self._rerun += 1
            self._again.add(run.key)
            self.start(run)

    def _next(self) -> Ended:
        while not self._listener.ended_runs:
            self._pool.turn(self._watch)
        return self._listener.ended_runs.popleft()

    def close(self) -> None:
        """End whatever runs. May be called more than once."""
        self._pool.close()


def job(run: ArmRun) -> Job:
    """The worker's job. Unlike a fresh arm's, its requests are planned there: workers are many, the parent is one."""
    limits, asked = run.scenario.limits, run.asked
    payload = {
        "model": asked.model,
        "arm": run.arm,
        "seed": run.seed,
        "toggles": pickle.dumps(run.toggles),
        "packs": pickle.dumps(run.packs),
        "scenario": pickle.dumps(run.scenario),
    }
    return Job(run.key, TARGET, payload, limits.timeout_s, float(limits.memory_mb), asked.device != "cpu")


Ended = ArmResult | ArmAtFault | tuple[ArmRun, MachineFailure]
"""The end of an arm: a result, a fault of its scenario, or a failure of the machine."""


class _Collected:
    """The reports of workers, by job."""

    def __init__(self) -> None:
        self.runs: dict[str, ArmRun] = {}
        self.ended_runs: deque[Ended] = deque()
        self._ledgers: dict[str, Ledger] = {}
        self._used: set[str] = set()

    def started(self, job: Job) -> None:
        self._ledgers[job.name] = Ledger()

    def event(self, job: Job, event: dict[str, Any]) -> None:
        self._ledgers[job.name].fold(event)
        if event.get("event") == "stack":
            self._used.add(event["device"])

    def ended(self, job: Job, end: WorkerEnd) -> None:
        run, ledger = self.runs.pop(job.name), self._ledgers.pop(job.name)
        outcome, failure = ledger.outcome(end), None
        if outcome.verdict == "unknown":
            failure = outcome.machine or ledger.lost(run.asked.device, self._used)
        if ledger.usage_error is not None and not ledger.unavailable:
            error = run.at_fault(ledger.usage_error, ledger.usage_option)
            self.ended_runs.append(ArmAtFault(run, error))
        elif failure is not None:
            self.ended_runs.append((run, failure))
        else:
            self.ended_runs.append(ArmResult(run, outcome))

    def waiting(self) -> None:
        """Nothing to do meanwhile."""
