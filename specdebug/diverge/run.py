"""Run two arms, lay their recordings side by side, and look once more at what differs, with its values: an engine
repeats a run to the bit, so it is fingerprinted first, and run again for the values that differ."""

import dataclasses
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from specdebug.base import interrupts
from specdebug.base.abilities import DEFAULT
from specdebug.campaign.loops.replay import ArmRun, Progress, RunContent, run_arms, run_as
from specdebug.campaign.loops.steplog import Recording
from specdebug.diverge import worker
from specdebug.diverge.align import (
    Difference,
    Looked,
    Sides,
    computed_again,
    in_common,
    in_lockstep,
    prompts_of,
    same_schedule,
    unlike_by_worker,
)
from specdebug.diverge.recording import RecordedStep, read
from specdebug.diverge.rounding import Pairs, Rounding, ValueDifference, compared, judge, next_sites
from specdebug.scenario.grammar import OracleSpec, Scenario
from specdebug.scenario.reworked import AGAIN
from specdebug.targets.options import options_of
from specdebug.targets.registry import find_target
from specdebug.verdict.outcome import EXIT_CODES, Outcome
from specdebug.workers.job import Job
from specdebug.workers.machine_failure import MachineFailed
from specdebug.workers.pool import WorkerPool

LOOK_AHEAD = 2000  # differences looked through for them

NamedCall = tuple[int, int, str]  # step, call and site


@dataclass(frozen=True)
class RecordedRun(ArmRun):
    """An arm run that writes ``hashes``, or keeps tensors in ``folder`` (``keep``: step, call and site of each).
    ``beside_ours``: it is laid beside another engine's, with a hash for each row of a prompt; ``summed``: hashes are
    sums, as of a device."""

    folder: str = ""
    hashes: str | None = None
    keep: tuple[NamedCall, ...] = ()
    beside_ours: bool = False
    summed: bool = False

    def job(self, library: RunContent) -> Job:
        job = super().job(library)
        names = ("folder", "hashes", "keep", "beside_ours", "summed")
        record = {name: getattr(self, name) for name in names}
        return dataclasses.replace(job, target=worker.TARGET, payload={**job.payload, "record": record})


def recorded(run: ArmRun, key: str, *, beside_ours: bool = False, **record: Any) -> RecordedRun:
    """The run, recorded. Only our own environment has the hashes of a host."""
    summed = beside_ours or run.target != DEFAULT
    return run_as(RecordedRun, run, key=key, beside_ours=beside_ours, summed=summed, **record)


@dataclass(frozen=True)
class Divergence:
    """The answer: the place where two arms part. ``names``: of the arms, with what was done to them. ``alike``: their
    engines are configured alike, so everything must be equal to the bit. ``first``: the first difference (beyond
    rounding), with its ``values`` if those differ; ``after``: the first at each of the next sites. ``rescheduled``: the
    first step in which they computed other requests or shapes. ``reason``: why they cannot be compared, empty if they
    can. ``looked``: what was compared, if they are not alike."""

    names: tuple[str, str]
    outcomes: tuple[Outcome, ...] = ()
    alike: bool = True
    steps: tuple[int, int] = (0, 0)
    first: Difference | None = None
    values: ValueDifference | None = None
    after: tuple[Difference, ...] = ()
    rounding: Rounding = field(default_factory=Rounding)
    rescheduled: int | None = None
    looked: Looked | None = None
    reason: str = ""
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0 nothing diverged, 1 something did, 125 there is no telling, 128 + N after signal N."""
        if self.interrupted:
            return interrupts.exit_code()
        if self.reason:
            return EXIT_CODES["unknown"]
        return 1 if self.first is not None else 0

    @property
    def words(self) -> list[str]:
        """The answer for a person: the place, and the values there."""
        first, seen = self.first, self.values
        if self.interrupted:
            return ["interrupted before both arms were through"]
        if self.reason:
            return [f"cannot be compared: {self.reason}"]
        if first is None:
            rounding = self.rounding
            rounded = " but for rounding" if rounding.shares or rounding.parted or rounding.unseen else ""
            return [f"nothing diverged{rounded} in {self.steps[1]} steps"]
        who = f", request {first.owner}" if first.owner is not None else ""
        if first.what != "value":
            site = f" at {first.site}" if first.site else ""
            return [f"diverged at step {first.when}{site}{who}: {first.text}"]
        nth = first.right.nth if first.right is not None else 0
        again = f" (call {nth + 1} of it in the step)" if nth else ""
        where = f"diverged at step {first.when}{who}, site {first.site}{again}"
        if seen is None:
            return [where, "  the values could not be read again: a second run did not come to the same place"]
        dtype = first.right.descriptor.dtype if first.right is not None else ""
        place = f"[{', '.join(map(str, seen.index))}]" if seen.index else ""
        more = f"; {seen.count} of its {seen.size} elements differ" if seen.size > 1 else ""
        return [where, f"  {dtype} {place}: {seen.left!r} in the first arm, {seen.right!r} in the second{more}"]


def second_serving(steps: Sequence[RecordedStep]) -> list[RecordedStep]:
    """The steps of a workload's second serving, its requests by the ids that they had in the first."""
    return [
        dataclasses.replace(step, rids=tuple(rid.removeprefix(AGAIN) for rid in step.rids))
        for step in steps
        if step.rids and all(rid.startswith(AGAIN) for rid in step.rids)
    ]


def not_comparable(left: ArmRun, right: ArmRun) -> str:
    """Why two arms have no tensors in common, empty if they do. Raises ContentError for an engine that cannot be."""
    for run in (left, right):
        if not find_target(run.target).traits.records:
            return f"target {run.target} cannot show its tensors; those of embedded, sglang and vllm can be compared"
    return left.shape.unlike(right.shape)


@dataclass
class Diverging:
    """Two arm runs under comparison. ``folder``: an empty one, for hashes and tensors."""

    pool: WorkerPool
    library: RunContent
    runs: tuple[ArmRun, ArmRun]
    folder: Path
    progress: Progress | None = None
    _looks: int = 0
    _schedule: Recording = field(default_factory=Recording)

    def __post_init__(self) -> None:
        self.runs = unjudged(self.runs[0]), unjudged(self.runs[1])

    def run(self) -> Divergence:
        """Compare the arms. Raises as ``loops.replay.run_arms``."""
        left, right = self.runs
        apart = left.target != right.target
        names = (_name(left, target=apart), _name(right, target=apart))
        reason = not_comparable(left, right)
        if reason:
            return Divergence(names, reason=reason)
        one, other = (options_of(run.target).completed(run.options) for run in self.runs)
        alike = not apart and one == other and left.rework == right.rework
        files = [self.folder / f"{number}.hashes" for number in (0, 1)]
        runs = [
            recorded(run, f"{number}: {run.arm}", folder=str(self.folder), hashes=str(file), beside_ours=apart)
            for number, (run, file) in enumerate(zip(self.runs, files, strict=True), 1)
        ]
        results, interrupted = run_arms(self.pool, self.library, runs, progress=self.progress, recording=self._schedule)
        outcomes = tuple(result.outcome for result in results)
        if interrupted:
            return Divergence(names, outcomes, interrupted=True)
        streams = [read(file) if file.exists() else [] for file in files]
        if right.rework == "again":
            streams[1] = second_serving(streams[1])
        answer = Divergence(names, outcomes, alike, (len(streams[0]), len(streams[1])))
        for name, outcome, stream in zip(names, outcomes, streams, strict=True):
            if outcome.unavailable or not stream:
                why = outcome.detail or "it made no step"
                return dataclasses.replace(answer, reason=f"arm {name} could not be run: {why}")
        try:
            return (self._in_lockstep if alike else self._by_request)(answer, *streams)
        except KeyboardInterrupt:
            return dataclasses.replace(answer, interrupted=True)

    def _by_request(
        self, answer: Divergence, left: Sequence[RecordedStep], right: Sequence[RecordedStep]
    ) -> Divergence:
        again = computed_again(left) | computed_again(right) | self._schedule.retracted
        alone = dict.fromkeys(sorted(again), "was computed again by one of them")
        engines = self.runs[0].target != self.runs[1].target
        two_workers = len({run.shape.worker for run in self.runs} - {None}) == 2  # v1 and v2, which pass other sites
        what: Sides = "engines" if engines else "workers" if two_workers else "arms"
        left, right, looked = in_common(left, right, alone | self._alone() if engines else alone, what)
        unlike = unlike_by_worker(left, right) if what == "workers" else frozenset()
        looked = dataclasses.replace(looked, unlike=Counter(site for _, _, _, site, _ in unlike))
        if engines:
            looked = dataclasses.replace(looked, prompts=prompts_of(left, right))
        answer = dataclasses.replace(answer, rescheduled=same_schedule(left, right), looked=looked)
        first, values, after, rounding = judge(left, right, self._kept, self.runs[0].shape, unlike)
        return dataclasses.replace(answer, first=first, values=values, after=after, rounding=rounding)

    def _alone(self) -> dict[str, str]:
        """Requests that two engines compute otherwise by right, and why."""
        planned = [self.library.workload(run.scenario, run.arm, run.seed).requests for run in self.runs]
        every = [request for requests in planned for request in requests]
        sampled = {each.rid: "is sampled, by coins of each engine's own" for each in every if each.sampling.temperature}
        return sampled | {each.rid: "is served with drafts by one of them" for each in every if not each.speculative}

    def _in_lockstep(
        self, answer: Divergence, left: Sequence[RecordedStep], right: Sequence[RecordedStep]
    ) -> Divergence:
        answer = dataclasses.replace(answer, rescheduled=same_schedule(left, right))
        found = list(islice(in_lockstep(left, right), LOOK_AHEAD))
        if not found:
            return answer
        first, values = found[0], None
        if first.what == "value":
            with self._kept([(first.left, first.right)]) as folders:
                values = compared(first, *folders)
        return dataclasses.replace(answer, first=first, values=values, after=next_sites(found))

    @contextmanager
    def _kept(self, pairs: Pairs) -> Iterator[tuple[Path, Path]]:
        """Run both arms again, keeping each one's parts, in a folder of its own while the block lasts."""
        self._looks += 1
        runs: list[ArmRun] = []
        folders = [self.folder / f"{self._looks}-{number}" for number in (0, 1)]
        for number, (run, folder) in enumerate(zip(self.runs, folders, strict=True)):
            folder.mkdir()
            parts = {part for pair in pairs if (part := pair[number]) is not None}
            places = tuple(sorted({(part.step, part.call, part.descriptor.site) for part in parts}))
            apart = self.runs[0].target != self.runs[1].target
            key = f"{number + 1}: {run.arm}, again"
            runs.append(recorded(run, key, folder=str(folder), keep=places, beside_ours=apart))
        if pairs:
            results, interrupted = run_arms(self.pool, self.library, runs, progress=self.progress)
            if interrupted:
                raise KeyboardInterrupt
            for result in results:
                if result.outcome.machine is not None:
                    raise MachineFailed(result.outcome.machine)
        try:
            yield folders[0], folders[1]
        finally:
            for folder in folders:
                shutil.rmtree(folder)


def unjudged(run: ArmRun) -> ArmRun:
    """The run without oracles that cost time and see nothing that the fingerprints do not."""
    scenario: Scenario = run.scenario
    own = scenario.oracles_of(run.arm)
    off = OracleSpec.none(pools=own.pools, server=own.server)
    arms = {name: dataclasses.replace(arm, oracles=off) for name, arm in scenario.arms.items()}
    return dataclasses.replace(run, scenario=dataclasses.replace(scenario, arms=arms, oracles=off), expectation=None)


def _name(run: ArmRun, *, target: bool) -> str:
    """The arm, its ``target`` if that is wanted, and what is done to it beside what it says itself."""
    extra = [f"revert {number}" for number in run.reverts if number not in run.scenario.arms[run.arm].revert]
    extra += [f"fault {fault}" for fault in run.scenario.faults_of(run.arm)]
    place = f"{run.arm} on {run.target}" if target else run.arm
    return f"{place} ({', '.join(extra)})" if extra else place
