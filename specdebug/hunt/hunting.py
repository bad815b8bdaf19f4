"""Run drawn scenarios one after another, keep what became of each, and write those that fail to files."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import yaml

from specdebug.errors import SpecDebugError
from specdebug.hunt.draw import ARM, SERVED, SPACES, HuntSpace, drawn
from specdebug.hunt.record import HuntRecord, Judged
from specdebug.loops import replay as replaying
from specdebug.loops.kept_servers import KeptServers
from specdebug.loops.replay import ArmResult, ArmRun, Choices, Progress, RunContent, run_arms, run_as
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.servers import TargetChoice
from specdebug.workers.job import Job
from specdebug.workers.pool import WorkerPool


@dataclass(frozen=True)
class HuntRun(ArmRun):
    """An arm run on a server that a keeper may have kept from the one before."""

    keeper: str | None = None

    def job(self, library: RunContent) -> Job:
        job = super().job(library)
        return dataclasses.replace(job, payload={**job.payload, "keeper": self.keeper})


@dataclass
class Hunt:
    """A hunt on ``target``, of scenarios of ``seed``. ``reverts``: fixes taken out of the engine, to see what a hunt
    makes of a known failure."""

    pool: WorkerPool
    library: RunContent
    record: HuntRecord
    target: TargetChoice
    seed: int
    reverts: tuple[int, ...] = ()
    progress: Progress | None = None
    jobs: int = 1
    _servers: KeptServers = field(default_factory=KeptServers, init=False)

    def run(self, numbers: Sequence[int], until: float = float("inf")) -> bool:
        """Run those scenarios that have not been run; returns True if a signal cut it short. ``until``: on the
        monotonic clock, when no more is begun. Raises RecordError, or what says that this machine cannot run them."""
        left = [number for number in numbers if number not in self.record.judged]
        try:
            for first in range(0, len(left), self.jobs):
                if time.monotonic() >= until:
                    return False
                if self._together(left[first : first + self.jobs]):
                    return True
        finally:
            self._servers.close()
        return False

    def scenario(self, number: int) -> Scenario:
        """A drawn scenario."""
        return Scenario.from_dict(drawn(self.seed, number, space_of(self.target)))

    def _together(self, numbers: Sequence[int]) -> bool:
        """Run a few at a time."""
        try:
            results, interrupted = run_arms(
                self.pool, self.library, [self._run(number) for number in numbers], self.progress
            )
        except SpecDebugError as error:
            if error.exit_code != 2:
                raise
            if len(numbers) > 1:  # which of them cannot be asked for shows one by one
                return any(self._together([number]) for number in numbers)
            self._keep(Judged(numbers[0], "refused", detail=str(error)))
            return False
        for number, result in zip(numbers, results, strict=True):
            if not result.outcome.interrupted:
                self._keep(_judged(number, result))
        return interrupted

    def _keep(self, one: Judged) -> None:
        if one.verdict == "fail":
            plain = drawn(self.seed, one.number, space_of(self.target))
            text = yaml.safe_dump(plain, sort_keys=False, width=110)
            self.record.write(f"{one.number:05d}.yaml", text)
        self.record.add(one)

    def _run(self, number: int) -> HuntRun:
        choices = Choices(arms=(ARM,), target=self.target, reverts=self.reverts)
        (run,) = replaying.plan(self.scenario(number), choices, self.library)
        return run_as(HuntRun, run, key=f"{number}", keeper=self._servers.address_for(run))


def space_of(target: TargetChoice) -> HuntSpace:
    """Return the space of what a target's engine can be asked for."""
    kind = target if isinstance(target, str) else target.kind
    return SPACES.get(kind, SERVED)


def _judged(number: int, result: ArmResult) -> Judged:
    outcome = result.outcome
    ended = [request for request in outcome.requests if request.finish_reason is not None]
    tokens = sum(len(request.output_ids) for request in outcome.requests)
    return Judged(
        number,
        str(outcome.verdict),
        outcome.signature or "",
        outcome.detail or "",
        round(outcome.metrics.wall_s, 1),
        len(ended),
        tokens,
    )
