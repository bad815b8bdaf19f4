"""Run two arms, lay their recordings side by side, and look once more at what differs, with its values.

Our own engine repeats a run to the bit, so it is fingerprinted first, and run again for the values that differ. Another
engine's schedule hangs on when requests came, so it keeps everything by the first run, on a tape.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from specdebug.base import interrupts
from specdebug.base.abilities import DEFAULT
from specdebug.campaign.loops.replay import ArmRun, Progress, RunContent, run_arms, run_as
from specdebug.campaign.loops.steplog import Recording
from specdebug.diverge import worker
from specdebug.diverge.align import Difference, Looked, Sides, in_common, in_lockstep, same_schedule, unlike_by_worker
from specdebug.diverge.recording import RecordedStep, read
from specdebug.diverge.rounding import Pairs, Rounding, ValueDifference, compared, judge, next_sites
from specdebug.diverge.tape import Positions, TapeRecording, chunks_of, computed_again
from specdebug.scenario.grammar import OracleSpec, Scenario
from specdebug.targets.options import OURS
from specdebug.targets.registry import find_target
from specdebug.verdict.outcome import EXIT_CODES, Outcome
from specdebug.workers.job import Job
from specdebug.workers.machine_failure import MachineFailed
from specdebug.workers.pool import WorkerPool

LOOK_AHEAD = 2000  # differences looked through for them

NamedCall = tuple[int, int, str]  # step, call and site


@dataclass(frozen=True)
class RecordedRun(ArmRun):
    """An arm run that writes ``hashes``, or keeps tensors in ``folder`` (``keep``: step, call and site of each)."""

    folder: str = ""
    hashes: str | None = None
    keep: tuple[NamedCall, ...] = ()

    def job(self, library: RunContent) -> Job:
        job = super().job(library)
        record = {"folder": self.folder, "hashes": self.hashes, "keep": self.keep}
        return dataclasses.replace(job, target=worker.TARGET, payload={**job.payload, "record": record})


@dataclass(frozen=True)
class TapedRun(ArmRun):
    """An arm run whose engine writes a ``tape``."""

    tape: str = ""

    def job(self, library: RunContent) -> Job:
        job = super().job(library)
        return dataclasses.replace(job, payload={**job.payload, "tape": self.tape})


def recorded(run: ArmRun, key: str, **record: Any) -> RecordedRun:
    """The run of our own engine, recorded."""
    return run_as(RecordedRun, run, key=key, **record)


@dataclass
class Side:
    """An arm under comparison, of our own engine. ``name``: of its files in ``folder``."""

    run: ArmRun
    folder: Path
    name: str

    def recorded(self, key: str) -> ArmRun:
        """The run to make first."""
        return recorded(self.run, key, folder=str(self.folder), hashes=str(self.folder / f"{self.name}.hashes"))

    def steps(self, like: Sequence[RecordedStep] = (), *, whole: bool = True) -> list[RecordedStep]:
        """The steps that it wrote; none where it did not come that far. ``like``: the other side's, whose types of
        integers and cuts of prompts a tape is read in. ``whole``: that side came to its end."""
        file = self.folder / f"{self.name}.hashes"
        found = read(file) if file.exists() else []
        file.unlink(missing_ok=True)
        return found

    def again(self, key: str, places: Iterable[NamedCall], folder: Path) -> ArmRun | None:
        """The run that puts the tensors of those calls into ``folder``; None if they are there now."""
        return recorded(self.run, key, folder=str(folder), keep=tuple(sorted(places)))


@dataclass
class TapeSide(Side):
    """An arm of another engine. Once the steps are read: ``positions`` as ``TapeRecording.positions``, ``left_out``
    requests that it did not write to their end, and why."""

    positions: Mapping[str, Positions] | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    _recording: TapeRecording | None = None

    def recorded(self, key: str) -> ArmRun:
        return run_as(TapedRun, self.run, key=key, tape=str(self.folder / f"{self.name}.tape"))

    def steps(self, like: Sequence[RecordedStep] = (), *, whole: bool = True) -> list[RecordedStep]:
        branches, _, nodes = self.run.shape.tree or (1, 0, 1)
        self._recording = found = TapeRecording(
            self.folder / f"{self.name}.tape",
            branches=branches,
            nodes=nodes,
            as_in={call.site: call.dtype for step in like for call in step.calls if "int" in call.dtype},
            chunks=chunks_of(like, whole=whole),
            summed=self.run.shape.device != "cpu",  # as our engine hashes there
        )
        self.positions, self.left_out = found.positions, found.left_out
        return found.steps

    def again(self, key: str, places: Iterable[NamedCall], folder: Path) -> ArmRun | None:
        assert self._recording is not None
        self._recording.keep([(step, call) for step, call, _ in places], folder)
        return None


def side_of(run: ArmRun, folder: Path, name: str) -> Side:
    return (Side if run.target == DEFAULT else TapeSide)(run, folder, name)


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


def not_comparable(left: ArmRun, right: ArmRun) -> str:
    """Why two arms have no tensors in common, empty if they do. Raises ContentError for an engine that cannot be."""
    for run in (left, right):
        if run.target != DEFAULT and not find_target(run.target).traits.records:
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
        alike = left.target == right.target == DEFAULT and OURS.completed(left.options) == OURS.completed(right.options)
        runs = [side.recorded(f"{n}: {side.run.arm}") for n, side in enumerate(self._sides, 1)]
        results, interrupted = run_arms(self.pool, self.library, runs, progress=self.progress, recording=self._schedule)
        outcomes = tuple(result.outcome for result in results)
        if interrupted:
            return Divergence(names, outcomes, interrupted=True)
        streams = self._streams(outcomes)
        steps = (len(streams[0]), len(streams[1]))
        answer = Divergence(names, outcomes, alike, steps)
        for name, outcome, stream in zip(names, outcomes, streams, strict=True):
            if outcome.unavailable or not stream:
                why = outcome.detail or "it made no step"
                return dataclasses.replace(answer, reason=f"arm {name} could not be run: {why}")
        try:
            return (self._in_lockstep if alike else self._by_request)(answer, *streams)
        except KeyboardInterrupt:
            return dataclasses.replace(answer, interrupted=True)

    def _streams(self, outcomes: Sequence[Outcome]) -> tuple[list[RecordedStep], list[RecordedStep]]:
        """Both sides' steps. A tape is read like the other side's, so our own engine's come first."""
        sides, ours = self._sides, int(self.runs[0].target != DEFAULT and self.runs[1].target == DEFAULT)
        first = sides[ours].steps()
        other = sides[1 - ours].steps(first, whole=outcomes[ours].verdict == "pass")
        return (other, first) if ours else (first, other)

    @cached_property
    def _sides(self) -> tuple[Side, Side]:
        one, other = (side_of(run, self.folder, str(number)) for number, run in enumerate(self.runs))
        return one, other

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
        looked = self._with_prompts(looked)
        answer = dataclasses.replace(answer, rescheduled=same_schedule(left, right), looked=looked)
        first, values, after, rounding = judge(left, right, self._kept, self.runs[0].shape, unlike)
        return dataclasses.replace(answer, first=first, values=values, after=after, rounding=rounding)

    def _with_prompts(self, looked: Looked) -> Looked:
        """What was looked at, and what tapes say of requests and prompts."""
        left_out: dict[str, str] = {}
        prompts = None
        for number, side in enumerate(self._sides):
            if not isinstance(side, TapeSide):
                continue
            left_out |= {rid: why for rid, why in side.left_out.items() if rid not in looked.alone}
            if side.positions is not None:
                found = [each for rid, each in side.positions.items() if rid not in looked.alone]
                other, own = sum(each.other for each in found), sum(each.own for each in found)
                prompts = (sum(each.both for each in found), *((other, own) if number else (own, other)))
        return dataclasses.replace(looked, left_out=left_out, prompts=prompts)

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
        for number, (side, folder) in enumerate(zip(self._sides, folders, strict=True)):
            folder.mkdir()
            parts = {part for pair in pairs if (part := pair[number]) is not None}
            places = {(part.step, part.call, part.descriptor.site) for part in parts}
            again = side.again(f"{number + 1}: {side.run.arm}, again", places, folder)
            runs += [] if again is None else [again]
        if pairs and runs:
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
    flags: dict[str, Any] = {each.name: False for each in dataclasses.fields(OracleSpec) if each.default is True}
    own = scenario.oracles_of(run.arm)
    off = OracleSpec(**{**flags, "pools": own.pools, "server": own.server})
    arms = {name: dataclasses.replace(arm, oracles=off) for name, arm in scenario.arms.items()}
    return dataclasses.replace(run, scenario=dataclasses.replace(scenario, arms=arms, oracles=off), expectation=None)


def _name(run: ArmRun, *, target: bool) -> str:
    """The arm, its ``target`` if that is wanted, and what is done to it beside what it says itself."""
    extra = [f"revert {number}" for number in run.reverts if number not in run.scenario.arms[run.arm].revert]
    extra += [f"fault {fault}" for fault in run.scenario.faults_of(run.arm)]
    place = f"{run.arm} on {run.target}" if target else run.arm
    return f"{place} ({', '.join(extra)})" if extra else place
