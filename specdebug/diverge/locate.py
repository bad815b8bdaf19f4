"""Where a failure began: the failing arm again beside its sound twin, both recorded.

A wrong token, wrong KV or a low accept length is a consequence, and a NaN or an index out of its pool may have come
from elsewhere, too. So the arm runs again beside the same arm with its fixes in place and without its faults. Engines
configured alike compute equal things to the bit: the first tensor that differs is where it began. Both stop after the
step in which the failure was seen, run side by side and are not judged again (but for a twin not known to pass). A
failure keeps its name where nothing differs before it is seen, and a probe's finding also where the arm goes another
way first. An arm without reverts and faults has no twin: its oracles look after every step, and what they find first is
where it began, as far as the dense reference can tell. One of another engine is laid beside the same arm on ours."""

import dataclasses
import json
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Progress, Replay, RunContent, run_arms
from specdebug.diverge.align import Difference, in_lockstep, is_where
from specdebug.diverge.recording import RecordedStep, read
from specdebug.diverge.run import Diverging, recorded, unjudged
from specdebug.targets.ranks.layout import RankLayout
from specdebug.targets.registry import find_target
from specdebug.verdict.outcome import Located, Outcome
from specdebug.verdict.signatures import OUTPUTS, SCHEDULE, SHARED
from specdebug.workers.pool import WorkerPool

REFERENCE = "the dense reference after every step"
IN_PLACE = ""  # why a failure is not located that is named where it began: nothing needs to be said of it


@dataclass(frozen=True)
class Suspect:
    """A failing run and the sound one to hold it against; without one, the dense reference is asked at every step.
    ``seen``: the signature of what was found. ``until``: the last step to look at, None for all. ``beside``: the sound
    run, in words."""

    failing: ArmRun
    sound: ArmRun | None
    seen: str
    until: int | None = None
    beside: str = "its sound twin"

    @property
    def apart(self) -> bool:
        """True if the sound run is another engine's."""
        return self.sound is not None and self.sound.target != self.failing.target


@dataclass(frozen=True)
class _Recorded:
    """A run's recording, up to a step, and its outcome."""

    steps: Sequence[RecordedStep]
    outcome: Outcome
    until: int | None

    def reaches(self, step: int | None) -> bool:
        return self.until is None or (step is not None and step <= self.until)


def twin_of(run: ArmRun) -> ArmRun | None:
    """Return the run with its fixes in place and without its faults; None if it has neither reverts nor faults."""
    scenario = run.scenario
    if not run.toggles and not scenario.faults_of(run.arm):
        return None
    sound = dataclasses.replace(scenario.arms[run.arm], revert=(), faults=())
    scenario = dataclasses.replace(scenario, arms={**scenario.arms, run.arm: sound})
    return dataclasses.replace(run, scenario=scenario, toggles=())


class Locator:
    """Locates failures. Recordings of sound runs are kept, so a second failure beside the same one costs less."""

    def __init__(self, pool: WorkerPool, library: RunContent, progress: Progress | None = None) -> None:
        self._pool = pool
        self._library = library
        self._progress = progress
        self._sound: dict[str, _Recorded] = {}
        self._passed: set[str] = set()
        self.interrupted = False  # True once a signal has cut a search short

    def in_replays(self, replays: Sequence[Replay]) -> tuple[Replay, ...]:
        """Return replays with their failures located, all at once. One that a signal cuts short is ``interrupted``."""
        began = time.monotonic()
        told = iter(self.located([result for replay in replays for result in replay.results]))
        spent = time.monotonic() - began
        return tuple(
            dataclasses.replace(
                replay,
                results=tuple(next(told) for _ in replay.results),
                wall_s=replay.wall_s + (spent if len(replays) == 1 else 0.0),
                interrupted=replay.interrupted or self.interrupted,
            )
            for replay in replays
        )

    def located(self, results: Sequence[ArmResult]) -> list[ArmResult]:
        """Return the results; those whose failures began before they were seen say where, or in a note why not."""
        suspects: dict[int, Suspect] = {}
        told = list(results)
        for at, result in enumerate(results):
            if result.to_locate:
                found = self._suspect(result)
                if isinstance(found, str):
                    told[at] = _noted(result, found)
                else:
                    suspects[at] = found
        if suspects:
            self._passed |= {_identity(each.run) for each in results if each.outcome.verdict == "pass"}
        for (at, _), place in zip(suspects.items(), self.locate(list(suspects.values())), strict=True):
            result = told[at]
            if isinstance(place, str):
                told[at] = _noted(result, place)
            else:
                told[at] = dataclasses.replace(result, outcome=result.outcome.began_at(place))
        return told

    def locate(self, suspects: Sequence[Suspect]) -> list[Located | str]:
        """Return where each failure began, or why that is not known, in words that fit behind "not located: "; empty
        where it is named."""
        if not suspects or self.interrupted:
            return ["interrupted"] * len(suspects)
        if self._progress is not None:
            first, others = suspects[0], f" and {len(suspects) - 1} more" * (len(suspects) > 1)
            self._progress.notice(f"locating {first.seen} of {first.failing.key}{others}")
        with tempfile.TemporaryDirectory(prefix="specdebug-locate-") as folder:
            try:
                twins = [each for each in suspects if not each.apart]
                failing = iter(self._record(twins, Path(folder)))
                places = [self._beside(each) if each.apart else next(failing) for each in suspects]
            except SpecDebugError as error:
                return [str(error)] * len(suspects)
        if self.interrupted:
            return ["interrupted"] * len(suspects)
        return [
            self._place(each, place) if isinstance(place, _Recorded) else place
            for each, place in zip(suspects, places, strict=True)
        ]

    def _suspect(self, result: ArmResult) -> Suspect | str:
        run, outcome = result.run, result.outcome
        seen, step, sound = outcome.signature or "", outcome.where_step, twin_of(run)
        if sound is None and _kind(seen) not in OUTPUTS:
            return IN_PLACE
        if not find_target(run.target).traits.records:
            return f"target {run.target} cannot show its tensors"
        if sound is None and run.target == DEFAULT:
            return Suspect(run, None, seen, step, REFERENCE)
        ranks = RankLayout.read(run.scenario.engine_of(run.arm)).world
        if sound is None and ranks > 1:
            return f"it is served on {ranks} ranks, and our engine, beside which it would be laid, has one"
        if sound is None:
            ours = dataclasses.replace(run, scenario=run.scenario.on(DEFAULT), toggles=())
            return Suspect(run, ours, seen, step, "the same arm on our engine")
        words = [f"fix {pr} applied" for pr in run.reverts]
        words += ["no fault injected"] * bool(run.scenario.faults_of(run.arm))
        return Suspect(run, sound, seen, step, f"the same arm with {' and '.join(words)}")

    def _record(self, suspects: Sequence[Suspect], folder: Path) -> list[_Recorded]:
        """Return the recordings of the failing runs, and keep those of the sound ones, all made side by side."""
        runs = [
            (_alone(each.failing, each_step=True) if each.sound is None else unjudged(each.failing), each.until)
            for each in suspects
        ]
        wanted: dict[str, tuple[ArmRun, int | None]] = {}
        for each in suspects:
            if each.sound is None:
                continue
            key = _identity(each.sound)
            if key in self._sound and self._sound[key].reaches(each.until):
                continue
            _, until = wanted.get(key, (None, -1))
            if until is not None and (each.until is None or each.until > until):
                wanted[key] = (unjudged if key in self._passed else _alone)(each.sound), each.until
        runs += wanted.values()
        files = [folder / f"{number}.hashes" for number in range(len(runs))]
        jobs = [
            recorded(_until(run, until), f"{number}: {run.key}", hashes=str(file))
            for number, ((run, until), file) in enumerate(zip(runs, files, strict=True))
        ]
        results, interrupted = run_arms(self._pool, self._library, jobs)
        self.interrupted = self.interrupted or interrupted
        made = [
            _Recorded(read(file) if file.exists() else [], result.outcome, until)
            for file, result, (_, until) in zip(files, results, runs, strict=True)
        ]
        self._sound.update(zip(wanted, made[len(suspects) :], strict=True))
        return made[: len(suspects)]

    def _beside(self, suspect: Suspect) -> Located | str:
        """Where another engine's run, which has no twin, parts from that of ours, request by request and beyond
        rounding. Raises SpecDebugError."""
        assert suspect.sound is not None  # for the type checker: it is apart from the failing run
        runs = suspect.sound, _until(suspect.failing, suspect.until)
        with tempfile.TemporaryDirectory(prefix="specdebug-locate-") as folder:
            found = Diverging(self._pool, self._library, runs, Path(folder)).run()
        self.interrupted = self.interrupted or found.interrupted
        if (first := found.first) is None:
            return found.reason or f"{suspect.beside} computes the same but for rounding"
        if suspect.seen == f"{_kind(suspect.seen)}@{first.site}":
            return IN_PLACE
        return Located(first.step, first.owner, first.site, _tensor(first), suspect.seen, suspect.beside)

    def _place(self, suspect: Suspect, failing: _Recorded) -> Located | str:
        sound = failing if suspect.sound is None else self._sound[_identity(suspect.sound)]
        for side, name in ((failing, "it"), (sound, "its twin")):
            if side.outcome.machine is not None or side.outcome.unavailable or not side.steps:
                return f"{name} could not be run again: {side.outcome.detail or 'it made no step'}"
        if suspect.sound is None:  # oracles have looked after every step
            first = next((each for each in failing.outcome.violations if each.kind in OUTPUTS), None)
            if first is None or first.step is None or first.signature == suspect.seen:
                return f"no fix is reverted and no fault injected, and {suspect.beside} sees nothing before"
            rid = first.data.get("rid")
            return Located(first.step, rid, first.site, first.detail, suspect.seen, suspect.beside)
        wrong = next((each for each in sound.outcome.violations if each.kind != "hang"), None)
        if wrong is not None:  # a hang is a run that stops where it is told to
            return f"{suspect.beside} fails, too: {wrong.signature}"
        return place_of(sound.steps, failing.steps, suspect)


def place_of(sound: Sequence[RecordedStep], failing: Sequence[RecordedStep], suspect: Suspect) -> Located | str:
    """Return where a failing run's recording first differs from a sound one's; why there is no telling, if it does
    not."""
    until, kind = suspect.until, _kind(suspect.seen)
    sides = [[step for step in side if until is None or step.number <= until] for side in (sound, failing)]
    found = next(in_lockstep(*sides), None)
    if kind not in OUTPUTS and (found is None or found.what != "value"):
        return IN_PLACE
    if found is None:
        when = "in all its steps" if until is None else f"up to step {until}"
        return f"{suspect.beside} computes the same {when}"
    if found.left is None and found.right is None:
        return Located(found.step, None, SCHEDULE, _tensor(found), suspect.seen, suspect.beside)
    # what the arm leaves out is wrong, or else what it does besides
    share, side = (found.right, sides[1]) if found.left is None else (found.left, sides[0])
    assert share is not None  # for the type checker: one of them is there
    site, stage = share.descriptor.site, ""
    seen = suspect.seen.partition("@")[2]
    calls = next(step.calls for step in side if step.number == share.step)[: share.call]
    if site == seen or (found.step == until and is_where(seen) and any(call.site == seen for call in calls)):
        return IN_PLACE  # slots are not compared: they come before the number that is read through them
    if site.startswith(SHARED):  # stages share it: the next site tells whose forward passed it
        step = next(step for step in side if step.number == share.step)
        later = (call.site for call in step.calls[share.call :])
        stage = next((site.partition(".")[0] for site in later if not site.startswith(SHARED)), "")
    return Located(found.step, found.owner, site, _tensor(found), suspect.seen, suspect.beside, stage)


def _kind(signature: str) -> str:
    return signature.partition("@")[0]


def _tensor(found: Difference) -> str:
    """Say in words what differs."""
    if found.what != "value" or found.right is None:
        return re.sub("the second( arm)?", "the arm", found.text.replace("the first arm", "the twin"))
    rows = found.right.rows
    return found.right.descriptor.dtype + ("" if rows is None else f", {rows} {'row' if rows == 1 else 'rows'}")


def _noted(result: ArmResult, why: str) -> ArmResult:
    if why == IN_PLACE:
        return result
    outcome = result.outcome
    noted = dataclasses.replace(outcome, notes=(*outcome.notes, f"not located: {why}"))
    return dataclasses.replace(result, outcome=noted)


def _until(run: ArmRun, step: int | None) -> ArmRun:
    """The run, stopped once that step is over."""
    limits = run.scenario.limits
    if step is None or step >= limits.max_steps:
        return run
    limits = dataclasses.replace(limits, max_steps=max(step, 1))
    return dataclasses.replace(run, scenario=dataclasses.replace(run.scenario, limits=limits))


def _alone(run: ArmRun, **more: Any) -> ArmRun:
    """The run, judged, but not compared with cold ones: those take as long again."""
    oracles = dataclasses.replace(run.scenario.oracles_of(run.arm), accept=None, **more)
    arm = dataclasses.replace(run.scenario.arms[run.arm], oracles=oracles)
    scenario = dataclasses.replace(run.scenario, arms={**run.scenario.arms, run.arm: arm})
    return dataclasses.replace(run, scenario=scenario, expectation=None)


def _identity(run: ArmRun) -> str:
    """Equal for runs that do the same."""
    scenario, arm = run.scenario, run.arm
    plain = {key: value for key, value in scenario.to_dict().items() if key not in ("arms", "expect", "engine")}
    own = [scenario.engine_of(arm), scenario.oracles_of(arm).to_dict(), scenario.arms[arm].mode, run.seed]
    packs = [pack.name for pack in run.packs]
    return json.dumps([plain, own, packs, repr((run.toggles, scenario.faults_of(arm)))], sort_keys=True, default=str)
