"""Run drawn scenarios one after another, here or on a cluster, keep what became of each, and write those that fail to
files."""

import dataclasses
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile, zip_longest
from pathlib import Path
from typing import Any

import yaml

from specdebug import __version__
from specdebug.apps.hunt.draw import ARM, TOGETHER, drawn
from specdebug.apps.hunt.record import HuntRecord, Judged
from specdebug.apps.twins.plan import TwinPair, as_it_is, pair_of
from specdebug.apps.twins.run import TwinResult, TwinRunner
from specdebug.base.assets import CHECKPOINTS
from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult, stream
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Choices, Progress, RunContent, plan, run_arms
from specdebug.campaign.loops.warm import KeptServers
from specdebug.campaign.preload import PRELOAD
from specdebug.campaign.trials.campaign import Candidate, TrialSource, as_they_end
from specdebug.campaign.trials.state import digest_of, engine_state, folder_digest, own_state
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.targets.options import options_of
from specdebug.targets.relations import NAMED, RELATIONS
from specdebug.targets.settings import ReleasedEngine, TargetChoice, engine_of
from specdebug.verdict.twins import TWIN
from specdebug.workers.pool import WorkerPool

DRAWN = tuple(name for name in RELATIONS if name not in (*NAMED, "runner"))
"""Relations that are drawn: another release takes as long to build as all others together."""


def hunt_state(target: TargetChoice, reverts: Sequence[int], library: Library) -> dict[str, str]:
    """Return the state that scenarios of a hunt are judged in. Raises ContentError, or SelectionError for a fix that
    cannot be reverted."""
    engine = engine_of(target)
    mends = (toggle for toggle in library.registry.all if engine in toggle.mends)
    fixes = [toggle.path.read_text(encoding="utf-8") for toggle in (*library.toggles(reverts, target), *mends)]
    packs = library.packs(Scenario.from_dict(drawn(0, 0, options_of(target))).probes_of(ARM))
    return {
        "fixes": f"#{digest_of(*fixes)}",
        "probe packs": f"#{digest_of(*map(repr, packs))}",
        f"checkpoints {CHECKPOINTS}": folder_digest(CHECKPOINTS),
        **own_state(),
        **engine_state(target),
    }


@dataclass
class HuntRunner:
    """Runs drawn scenarios of ``seed`` on ``target``, ``jobs`` at a time. ``reverts``: fixes taken out of the engine,
    to see what a hunt makes of a known failure. ``engine``: options that every engine has, whatever was drawn.
    ``relations``: in one of these each scenario is served a second time (``apps/twins``); unless given, every other
    scenario in one of :data:`DRAWN`."""

    pool: WorkerPool
    library: RunContent
    target: TargetChoice
    seed: int
    reverts: tuple[int, ...] = ()
    progress: Progress | None = None
    engine: Mapping[str, str | int] = field(default_factory=dict)
    jobs: int = 1
    relations: tuple[str, ...] = ()
    _servers: KeptServers = field(init=False)

    def __post_init__(self) -> None:
        self._servers = KeptServers(self.jobs)

    def plain(self, number: int) -> dict[str, Any]:
        plain = drawn(self.seed, number, options_of(self.target))
        served = {"target": engine_of(self.target)} if isinstance(self.target, ReleasedEngine) else {}
        return {**plain, **served, "engine": {**plain["engine"], **self.engine}}

    def scenario(self, number: int) -> Scenario:
        return Scenario.from_dict(self.plain(number))

    def together(self, numbers: Sequence[int]) -> tuple[list[Judged], bool]:
        """Return what became of some scenarios, run side by side, without those that a signal cut short, and whether
        one did. Raises what says that this machine cannot run them."""
        try:
            runs = [self._run(number) for number in numbers]
            results, interrupted = run_arms(self.pool, self.library, runs, progress=self.progress)
        except SpecDebugError as error:
            if error.exit_code != 2:
                raise
            if len(numbers) == 1:
                return [Judged(numbers[0], "refused", detail=str(error))], False
            every: list[Judged] = []
            for number in numbers:  # which of them cannot be asked for shows one by one
                judged, interrupted = self.together([number])
                every += judged
                if interrupted:
                    return every, True
            return every, False
        ended = [each for each in zip(numbers, results, strict=True) if not each[1].outcome.interrupted]
        if interrupted:
            return [_judged(number, result) for number, result in ended], True
        return self._with_twins(ended)

    def _with_twins(self, ended: Sequence[tuple[int, ArmResult]]) -> tuple[list[Judged], bool]:
        """Hold the scenarios that passed against their twins, where they have one, and return what became of all."""
        passed = [each for each in ended if each[1].outcome.verdict == "pass"]
        pairs = {number: pair for number, result in passed if (pair := self.pair(number, result.run)) is not None}
        runner = TwinRunner(self.pool, self.library, self.progress, locates=False)
        known = {pairs[number].base.key: result.outcome for number, result in passed if number in pairs}
        found = dict(zip(pairs, runner.results(list(pairs.values()), known), strict=True))
        whole = [each for each in ended if each[0] not in found or not runner.interrupted]
        return [_judged(number, result, found.get(number)) for number, result in whole], runner.interrupted

    def ways(self, number: int) -> list[str]:
        """Relations in which a scenario may be served a second time, that to be tried first first; none for every
        other scenario, unless some are asked for."""
        every = list(self.relations or (DRAWN if number % 2 else ()))
        return stream(self.seed, "hunt", "twin", number).sample(every, len(every))

    def pair(self, number: int, run: ArmRun) -> TwinPair | None:
        """A scenario's run and its twin, in the first of its ways that has a meaning there; None where none has."""
        base, workload = as_it_is(run, run.key), self.library.workload(run.scenario, run.arm, run.seed)
        pairs = (pair_of(RELATIONS[name], base, workload, self.library) for name in self.ways(number))
        return next((pair for pair in pairs if not pair.why_not), None)

    def close(self) -> None:
        """End the servers that are kept. May be called more than once."""
        self._servers.close()

    def _run(self, number: int) -> ArmRun:
        (run,) = plan(
            Scenario.from_dict(self.plain(number)), Choices((ARM,), self.reverts, target=self.target), self.library
        )
        run = dataclasses.replace(run, key=f"{number}", logprobs=bool(self.ways(number)), followed=True)
        return self._servers.kept(run)


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
            return bool(left) and self._on_cluster(self.cluster(), left, until)
        try:
            for together in side_by_side(left, self.runner.jobs):
                if time.monotonic() >= until:
                    return False
                judged, interrupted = self.runner.together(together)
                for one in judged:
                    self._keep(one)
                if interrupted:
                    return True
        finally:
            self.runner.close()
        return False

    def _on_cluster(self, source: TrialSource, left: Sequence[int], until: float) -> bool:
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
            plain = self.runner.plain(one.number)
            if one.signature.startswith(TWIN):
                plain["twins"] = {"relations": [one.twin], "broken": {ARM: [one.twin]}}
            text = yaml.safe_dump(plain, sort_keys=False, width=110)
            self.record.write(f"{one.number:05d}.yaml", text)
        self.record.add(one)


def side_by_side(numbers: Sequence[int], jobs: int) -> list[list[int]]:
    """Scenarios to run at the same time, up to ``jobs``, each of another engine: those that have one are run one after
    another, so that each job starts a server once for them."""
    engines = [list(some) for _, some in groupby(numbers, lambda number: number // TOGETHER)]
    rows = (zip_longest(*engines[first : first + jobs]) for first in range(0, len(engines), jobs))
    return [[number for number in row if number is not None] for some in rows for row in some]


def result_with(judged: Judged) -> TrialResult:
    """Return what became of a scenario as the result of a trial, which comes back from a cluster."""
    besides = (json.dumps(dataclasses.asdict(judged)),)
    if judged.verdict == "fail":
        return TrialResult("fail", judged.signature, judged.wall_s, judged.detail, besides)
    return TrialResult(
        "pass" if judged.verdict == "pass" else "untestable", None, judged.wall_s, judged.detail, besides
    )


def judged_in(result: TrialResult) -> Judged:
    assert result.besides is not None
    plain = json.loads(result.besides[0])
    return Judged(**{**plain, "not_engine_code": tuple(plain["not_engine_code"])})


def _judged(number: int, result: ArmResult, twin: TwinResult | None = None) -> Judged:
    outcome = result.outcome
    judged = Judged(
        number,
        str(outcome.verdict),
        outcome.signature or "",
        outcome.detail or "",
        round(outcome.metrics.wall_s, 1),
        sum(request.finish_reason is not None for request in outcome.requests),
        sum(len(request.output_ids) for request in outcome.requests),
        outcome.not_engine_code,
    )
    if twin is None or twin.verdict == "not compared":
        return judged
    judged = dataclasses.replace(judged, twin=twin.pair.relation.name)
    if twin.signature is None:
        return judged
    return dataclasses.replace(judged, verdict="fail", signature=twin.signature, detail=twin.words)


class HuntSource:
    """Runs drawn scenarios one at a time, with workers of its own, which start with the first of them.

    Args:
        folders: of content, beside what is shipped.
        engine: options that every engine has.
        relations: as :class:`HuntRunner` has them.

    Raises ContentError where those cannot be used.
    """

    candidates: tuple[Candidate, ...] = ()
    capacity = 1
    rerun = 0

    def __init__(
        self,
        target: TargetChoice,
        seed: int,
        reverts: tuple[int, ...],
        folders: Sequence[Path],
        engine: Mapping[str, str | int],
        relations: tuple[str, ...] = (),
    ) -> None:
        library = Library(folders)
        fixes = library.toggles(reverts, target)
        told = (toggle.path.read_text(encoding="utf-8") for toggle in fixes)
        drawn_by = (str(target), str(seed), repr(sorted(engine.items())), repr(relations))
        about = (__version__, platform.python_version(), *drawn_by)
        self.identity = digest_of("hunt", *about, *told)
        pool = WorkerPool(1, PRELOAD)
        self._runner = HuntRunner(pool, library, target, seed, reverts, engine=engine, relations=relations)
        self._trial: Trial | None = None
        self._started = False

    def start(self, trial: Trial) -> None:
        self._trial = trial  # :meth:`wait` makes it

    def wait(self) -> tuple[Trial, TrialResult]:
        """Return the trial's result. Raises SpecDebugError where this machine cannot run it."""
        assert self._trial is not None
        if not self._started:
            self._runner.pool.start()
            self._started = True
        trial, self._trial = self._trial, None
        judged, interrupted = self._runner.together([trial.number])
        if interrupted:
            raise KeyboardInterrupt
        return trial, result_with(judged[0])

    def close(self) -> None:
        self._runner.close()
        self._runner.pool.close()
