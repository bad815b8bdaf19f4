"""Run two arms, lay their recordings side by side, and look once more at what differs, with its values.

Runs repeat to the bit, so values are not kept the first time: both arms run again and keep those that differ.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from specdebug import interrupts
from specdebug.diverge.align import Difference, in_lockstep, same_schedule
from specdebug.diverge.judge import Pairs, Rounding, compared, judge, next_sites
from specdebug.diverge.stream import RecordedStep, read
from specdebug.diverge.values import ValueDifference
from specdebug.diverge.worker import TARGET
from specdebug.loops.replay import ArmRun, Progress, RunContent, run_arms
from specdebug.scenario.grammar import OracleSpec, Scenario
from specdebug.verdict.outcome import EXIT_CODES, Outcome
from specdebug.workers.job import Job
from specdebug.workers.machine_failure import MachineFailed
from specdebug.workers.pool import WorkerPool

LOOK_AHEAD = 2000
"""Differences looked through for them."""
SHAPE_OPTIONS = ("model", "device", "dtype")
"""Engine options without which tensors have no counterparts."""


@dataclass(frozen=True)
class RecordedRun(ArmRun):
    """An arm run that writes ``hashes``, or keeps tensors in ``folder`` (``keep``: step, call and site of each)."""

    folder: str = ""
    hashes: str | None = None
    by_request: bool = False
    keep: tuple[tuple[int, int, str], ...] = ()

    def job(self, library: RunContent) -> Job:
        job = super().job(library)
        record = {"folder": self.folder, "hashes": self.hashes, "keep": self.keep, "by_request": self.by_request}
        return dataclasses.replace(job, target=TARGET, payload={**job.payload, "record": record})


@dataclass(frozen=True)
class Divergence:
    """The answer: the place where two arms part.

    ``names``: of the arms, with what was done to them. ``alike``: their engines are configured alike, so everything
    must be equal to the bit. ``first``: the first difference (beyond rounding), with its ``values`` if those differ;
    ``after``: the first at each of the next sites. ``rescheduled``: the first step in which they computed other
    requests or shapes. ``reason``: why they cannot be compared, empty if they can.
    """

    names: tuple[str, str]
    outcomes: tuple[Outcome, ...] = ()
    alike: bool = True
    steps: tuple[int, int] = (0, 0)
    first: Difference | None = None
    values: ValueDifference | None = None
    after: tuple[Difference, ...] = ()
    rounding: Rounding = field(default_factory=Rounding)
    rescheduled: int | None = None
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
    one, other = left.config, right.config
    if one is None or other is None:
        lacking = left if one is None else right
        return f"target {lacking.target} cannot show its tensors; only the embedded engine's can be compared"
    if unequal := _first_unequal(one, other, SHAPE_OPTIONS):
        return f"the arms' engines differ in {unequal}"
    if one.speculative is None or other.speculative is None:
        return "" if one.speculative is other.speculative else "only one of the two arms speculates"
    unequal = _first_unequal(one.speculative, other.speculative, ("algorithm", "num_steps", "eagle_topk", "tree_size"))
    return f"the arms' engines differ in speculative {unequal}" if unequal else ""


def _first_unequal(one: object, other: object, options: Sequence[str]) -> str:
    pairs = ((option, getattr(one, option), getattr(other, option)) for option in options)
    return next((f"{option} ({left} and {right})" for option, left, right in pairs if left != right), "")


@dataclass
class Diverging:
    """Two arm runs under comparison. ``folder``: an empty one, for hashes and tensors."""

    pool: WorkerPool
    library: RunContent
    runs: tuple[ArmRun, ArmRun]
    folder: Path
    progress: Progress | None = None
    _looks: int = 0

    def __post_init__(self) -> None:
        self.runs = _unjudged(self.runs[0]), _unjudged(self.runs[1])

    def run(self) -> Divergence:
        """Compare the arms. Raises as ``loops.replay.run_arms``."""
        left, right = self.runs
        names = (_name(left), _name(right))
        reason = not_comparable(left, right)
        if reason:
            return Divergence(names, reason=reason)
        files = [self.folder / f"{side}.hashes" for side in (0, 1)]
        alike = left.config == right.config
        record = {"folder": str(self.folder), "by_request": not alike}
        runs = [
            _recorded(run, f"{side + 1}: {run.arm}", hashes=str(files[side]), **record)
            for side, run in enumerate(self.runs)
        ]
        results, interrupted = run_arms(self.pool, self.library, runs, self.progress)
        outcomes = tuple(result.outcome for result in results)
        if interrupted:
            return Divergence(names, outcomes, interrupted=True)
        streams = [read(file) if file.exists() else [] for file in files]
        for file in files:
            file.unlink(missing_ok=True)
        steps = (len(streams[0]), len(streams[1]))
        answer = Divergence(names, outcomes, alike, steps, rescheduled=same_schedule(*streams))
        for name, outcome, stream in zip(names, outcomes, streams, strict=True):
            if outcome.unavailable or not stream:
                why = outcome.detail or "it made no step"
                return dataclasses.replace(answer, reason=f"arm {name} could not be run: {why}")
        try:
            if alike:
                return self._in_lockstep(answer, *streams)
            first, values, after, rounding = judge(streams[0], streams[1], self._kept, self.runs[0].config)
        except KeyboardInterrupt:
            return dataclasses.replace(answer, interrupted=True)
        return dataclasses.replace(answer, first=first, values=values, after=after, rounding=rounding)

    def _in_lockstep(
        self, answer: Divergence, left: Sequence[RecordedStep], right: Sequence[RecordedStep]
    ) -> Divergence:
        found = list(islice(in_lockstep(left, right), LOOK_AHEAD))
        if not found:
            return answer
        named = [found[0], *next_sites(found)]
        with self._kept([(each.left, each.right) for each in named if each.what == "value"]) as folders:
            values = [compared(each, *folders) if each.what == "value" else None for each in named]
        by_number = {step.number: step for step in right}
        first, *after = (_owned(each, seen, by_number) for each, seen in zip(named, values, strict=True))
        return dataclasses.replace(answer, first=first, values=values[0], after=tuple(after))

    @contextmanager
    def _kept(self, pairs: Pairs) -> Iterator[tuple[Path, Path]]:
        """Run both arms again, keeping each one's parts, in a folder of its own while the block lasts."""
        self._looks += 1
        runs, folders = [], []
        for side, run in enumerate(self.runs):
            folder = self.folder / f"{self._looks}-{side}"
            folder.mkdir()
            folders.append(folder)
            parts = {part for pair in pairs if (part := pair[side]) is not None}
            keep = tuple(sorted({(part.step, part.call, part.descriptor.site) for part in parts}))
            runs.append(_recorded(run, f"{side + 1}: {run.arm}, again", folder=str(folder), keep=keep))
        if pairs:
            results, interrupted = run_arms(self.pool, self.library, runs, self.progress)
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


def _owned(found: Difference, seen: ValueDifference | None, steps: Mapping[int, RecordedStep]) -> Difference:
    """The difference with the request whose row is the first to differ."""
    if seen is None or found.right is None or not seen.index:
        return found
    owner = steps[found.right.step].owner_of_row(found.right, seen.index[0])
    return dataclasses.replace(found, owner=owner)


def _unjudged(run: ArmRun) -> ArmRun:
    """The run without oracles: they cost time and see nothing that the fingerprints do not."""
    scenario: Scenario = run.scenario
    off = OracleSpec(
        lossless=False, draft_kv=False, sampling=False, ends=False, pools=scenario.oracles_of(run.arm).pools
    )
    arms = {name: dataclasses.replace(arm, oracles=off) for name, arm in scenario.arms.items()}
    return dataclasses.replace(run, scenario=dataclasses.replace(scenario, arms=arms, oracles=off), expectation=None)


def _recorded(run: ArmRun, key: str, **record: Any) -> RecordedRun:
    facts: Mapping[str, Any] = {each.name: getattr(run, each.name) for each in dataclasses.fields(ArmRun)}
    return RecordedRun(**{**facts, "key": key, **record})


def _name(run: ArmRun) -> str:
    """The arm, and what is done to it beside what it says itself."""
    extra = [f"revert {number}" for number in run.reverts if number not in run.scenario.arms[run.arm].revert]
    extra += [f"fault {fault}" for fault in run.scenario.faults_of(run.arm)]
    return f"{run.arm} ({', '.join(extra)})" if extra else run.arm
