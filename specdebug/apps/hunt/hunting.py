"""Run drawn scenarios one after another, keep what became of each, and write those that fail to files."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile, zip_longest
from typing import Any, Literal

import yaml

from specdebug.apps.hunt.draw import ARM, TOGETHER, drawn
from specdebug.apps.hunt.record import HuntRecord, Judged
from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops import replay as replaying
from specdebug.campaign.loops.kept_servers import KeptServers
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Choices, Progress, RunContent, run_arms
from specdebug.campaign.trials.source import TrialSource, as_they_end
from specdebug.scenario.grammar import Scenario
from specdebug.targets.options import options_of
from specdebug.targets.settings import TargetChoice
from specdebug.workers.pool import WorkerPool


@dataclass
class HuntRunner:
    """Runs drawn scenarios of ``seed`` on ``target``, ``jobs`` at a time. ``reverts``: fixes taken out of the engine,
    to see what a hunt makes of a known failure. ``engine``: options that every engine has, whatever was drawn."""

    pool: WorkerPool
    library: RunContent
    target: TargetChoice
    seed: int
    reverts: tuple[int, ...] = ()
    progress: Progress | None = None
    engine: Mapping[str, str | int] = field(default_factory=dict)
    jobs: int = 1
    _servers: KeptServers = field(init=False)

    def __post_init__(self) -> None:
        self._servers = KeptServers(self.jobs)

    def plain(self, number: int) -> dict[str, Any]:
        """A drawn scenario as a file says it."""
        plain = drawn(self.seed, number, options_of(self.target))
        return {**plain, "engine": {**plain["engine"], **self.engine}}

    def scenario(self, number: int) -> Scenario:
        """A drawn scenario."""
        return Scenario.from_dict(self.plain(number))

    def together(self, numbers: Sequence[int]) -> tuple[list[Judged], bool]:
        """Return what became of some scenarios, run side by side, without those that a signal cut short, and whether
        one did. Raises what says that this machine cannot run them."""
        try:
            results, interrupted = run_arms(
                self.pool, self.library, [self._run(number) for number in numbers], self.progress
            )
        except SpecDebugError as error:
            if error.exit_code != 2:
                raise
            if len(numbers) > 1:  # which of them cannot be asked for shows one by one
                return self._one_by_one(numbers)
            return [Judged(numbers[0], "refused", detail=str(error))], False
        ended = zip(numbers, results, strict=True)
        return [_judged(number, result) for number, result in ended if not result.outcome.interrupted], interrupted

    def close(self) -> None:
        """End the servers that are kept. May be called more than once."""
        self._servers.close()

    def _one_by_one(self, numbers: Sequence[int]) -> tuple[list[Judged], bool]:
        every: list[Judged] = []
        for number in numbers:
            judged, interrupted = self.together([number])
            every += judged
            if interrupted:
                return every, True
        return every, False

    def _run(self, number: int) -> ArmRun:
        choices = Choices(arms=(ARM,), target=self.target, reverts=self.reverts)
        (run,) = replaying.plan(self.scenario(number), choices, self.library)
        return self._servers.kept(dataclasses.replace(run, key=f"{number}"))


@dataclass
class Hunt:
    """A hunt, and what it remembers. ``cluster``: makes what runs the scenarios elsewhere, in the runner's place."""

    runner: HuntRunner
    record: HuntRecord
    cluster: Callable[[], TrialSource] | None = None

    def run(self, numbers: Sequence[int], until: float = float("inf")) -> bool:
        """Run those scenarios that have not been run; returns True if a signal cut it short. ``until``: on the
        monotonic clock, when no more is begun. Raises RecordError, or what says that they cannot be run."""
        left = [number for number in numbers if number not in self.record.judged]
        if self.cluster is not None:
            return self._on_cluster(left, until) if left else False
        try:
            for numbers in side_by_side(left, self.runner.jobs):
                if time.monotonic() >= until:
                    return False
                judged, interrupted = self.runner.together(numbers)
                for one in judged:
                    self._keep(one)
                if interrupted:
                    return True
        finally:
            self.runner.close()
        return False

    def _on_cluster(self, left: Sequence[int], until: float) -> bool:
        """Run them as trials of a cluster, as many at a time as it takes."""
        assert self.cluster is not None
        source = self.cluster()
        trials = (Trial(number, frozenset(), self.runner.seed) for number in left)
        try:
            for _, result in as_they_end(source, takewhile(lambda _: time.monotonic() < until, trials)):
                self._keep(judged_in(result))
        except KeyboardInterrupt:
            return True
        finally:
            source.close()
        return False

    def _keep(self, one: Judged) -> None:
        if one.verdict == "fail":
            text = yaml.safe_dump(self.runner.plain(one.number), sort_keys=False, width=110)
            self.record.write(f"{one.number:05d}.yaml", text)
        self.record.add(one)


def side_by_side(numbers: Sequence[int], jobs: int) -> list[list[int]]:
    """Scenarios to run at the same time, up to ``jobs``, each of another engine: those that have one are run one after
    another, so that each job starts a server once for them."""
    by_engine = groupby(numbers, lambda number: number // TOGETHER)
    engines = [list(some) for _, some in by_engine]
    return [
        [number for number in row if number is not None]
        for first in range(0, len(engines), jobs)
        for row in zip_longest(*engines[first : first + jobs])
    ]


def result_with(judged: Judged) -> TrialResult:
    """Return what became of a scenario as the result of a trial, which comes back from a cluster."""
    outcomes: dict[str, Literal["pass", "fail", "untestable"]] = {"pass": "pass", "fail": "fail"}
    outcome = outcomes.get(judged.verdict, "untestable")
    signature = judged.signature if outcome == "fail" else None
    return TrialResult(outcome, signature, judged.wall_s, judged.detail, (json.dumps(dataclasses.asdict(judged)),))


def judged_in(result: TrialResult) -> Judged:
    """Inverse of :func:`result_with`."""
    assert result.besides is not None
    plain = json.loads(result.besides[0])
    return Judged(**{**plain, "not_engine_code": tuple(plain["not_engine_code"])})


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
        outcome.not_engine_code,
    )
