"""Run arms of a scenario, each in its own worker, and compare the outcomes with those expected.

This side never imports torch. ``plan`` turns a scenario and the command line's choices into arm runs, ``run_arms`` runs
any list of them, of one scenario or of many, and ``Replay`` is the answer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack

from packaging.specifiers import SpecifierSet

from specdebug.base import interrupts
from specdebug.base.abilities import DEFAULT
from specdebug.base.content import content_of
from specdebug.base.errors import SpecDebugError, Where, did_you_mean
from specdebug.campaign.loops.compare import Against
from specdebug.campaign.loops.steplog import Recording
from specdebug.campaign.trials.campaign import until_stopped
from specdebug.faults.model import Fault
from specdebug.patching.toggles import SelectionError, Toggle
from specdebug.scenario.checks import asked_of, check_faults, check_features, engine_shape, option_error
from specdebug.scenario.grammar import Expectation, ProbeMode, Scenario
from specdebug.scenario.reworked import reworked
from specdebug.scenario.target_ranges import environment_of, version_of
from specdebug.targets.base import Asked
from specdebug.targets.options import EngineShape
from specdebug.targets.registry import find_target
from specdebug.targets.settings import ReleasedEngine, TargetChoice, place_of
from specdebug.verdict.ledger import Ledger
from specdebug.verdict.outcome import EXIT_CODES, Outcome, not_run
from specdebug.verdict.signatures import may_have_begun_before
from specdebug.workers.home import Nest
from specdebug.workers.job import Job, Listener, WorkerEnd
from specdebug.workers.machine_failure import MachineFailed, MachineFailure
from specdebug.workers.pool import WorkerPool

if TYPE_CHECKING:
    from specdebug.scenario.packs import ProbePack
    from specdebug.scenario.workload import Workload


class NotOnTarget(SpecDebugError):
    """Nothing that is asked for is run on the target."""


@dataclass(frozen=True)
class LeftOut:
    """An arm that is not run on its target, and why, in words: the scenario says so, or a fix that it reverts is none
    of the target's engine."""

    scenario: Scenario
    arm: str
    why: str

    @property
    def target(self) -> TargetChoice:
        return self.scenario.target_of(self.arm)

    @property
    def where(self) -> Where:
        return self.scenario.where_key("arms", self.arm)

    @property
    def text(self) -> str:
        return f"not run on {self.target}: {self.why}"

    def to_dict(self) -> dict[str, Any]:
        return {"arm": self.arm, "target": str(self.target), "why": self.why}


def left_out(scenario: Scenario, arms: Sequence[str], library: RunContent) -> tuple[LeftOut, ...]:
    whys = ((arm, scenario.why_not(arm) or _no_such_fix(scenario, arm, library)) for arm in arms)
    return tuple(LeftOut(scenario, arm, why) for arm, why in whys if why is not None)


def refusal(arms: Sequence[LeftOut]) -> NotOnTarget:
    """The error where none of what was asked for is run: each reason once, at the place of its first arm."""
    first: dict[tuple[str, str], LeftOut] = {}
    for each in arms:
        first.setdefault((str(each.scenario.path), each.text), each)
    return NotOnTarget("; ".join(f"{each.where}: {each.text}" for each in first.values()))


def _no_such_fix(scenario: Scenario, arm: str, library: RunContent) -> str | None:
    """Why an arm's own reverts cannot be made on its target, if they cannot."""
    target = scenario.target_of(arm)
    if not isinstance(target, ReleasedEngine):
        return None
    try:
        toggles = library.toggles(scenario.arms[arm].revert, target)
    except SelectionError as error:
        return str(error)
    there = environment_of(target)
    versions = (version_of(target),) if there is None else there.versions
    for toggle in toggles:
        ranges = [SpecifierSet(held, prereleases=True) for held in toggle.foreign[target.kind]]
        if not any(version is None or any(each.contains(version) for each in ranges) for version in versions):
            return f"{toggle.pr} has patches for {target.kind} {' or '.join(toggle.foreign[target.kind])}"
    return None


PROBE = "specdebug.workers.device:answer"
PROBE_S = 60.0  # the limit of a probe, many times what a sound device takes to be made ready for a new process


class DeviceWatch:
    """Keeps arms off a device that is gone: a listener between a pool, which runs its probes, and another, which hears
    of all other jobs.

    A device that an arm found gone would fail every arm after it in a tenth of a second. So before the next one starts
    there, a fresh worker of the same pool computes on the device. If that fails, no arm is started there any more.
    """

    def __init__(self, pool: WorkerPool, listener: Listener) -> None:
        self._pool = pool
        self._listener = listener
        self._doubts: dict[str, MachineFailure] = {}
        self._gone: dict[str, MachineFailure] = {}
        self._probed = 0
        self._probe = ""
        self._heard: set[str] = set()

    def doubt(self, device: str, failure: MachineFailure) -> None:
        """Note that an arm found ``device`` gone. This may be called from within a turn of the pool."""
        self._doubts.setdefault(device, failure)

    def gone(self, device: str) -> MachineFailure | None:
        """Return the failure that keeps arms off ``device``, None if one may start.

        A device in doubt is probed first, by turning the pool: do not call this from within a turn of it. Raises
        WorkerStartError, or MachineFailed when there can be no worker for the probe.
        """
        while device not in self._gone and device in self._doubts:
            first = self._doubts.pop(device)
            self._probed += 1
            self._probe, self._heard = f"probe {self._probed} of {device}", set()
            self._pool.launch(Job(self._probe, PROBE, device, PROBE_S, uses_gpu=True))
            while "ended" not in self._heard:
                self._pool.turn(self)
            if "answers" not in self._heard:
                self._gone[device] = first
        return self._gone.get(device)

    def started(self, job: Job) -> None:
        if job.name != self._probe:
            self._listener.started(job)

    def event(self, job: Job, event: dict[str, Any]) -> None:
        if job.name != self._probe:
            self._listener.event(job, event)
        else:
            self._heard.add(event.get("event", ""))

    def ended(self, job: Job, end: WorkerEnd) -> None:
        if job.name != self._probe:
            self._listener.ended(job, end)
        else:
            self._heard.add("ended")

    def waiting(self) -> None:
        self._listener.waiting()


TARGET = "specdebug.run.arm:run_arm"
BUILD, REVERT = "specdebug.run.arm:build", "specdebug.run.session_run:revert"
LOAD_TRITON = "specdebug.workers.device:load_triton"

_NEVER_BEGUN = WorkerEnd("interrupted", 0, 0.0, 0.0, "")


@dataclass(frozen=True)
class Choices:
    """The command line's choices beside the file. ``target`` replaces every arm's, ``engine`` options go over them,
    ``faults`` are added to those of the arm. ``ready_timeout_s``: of servers that are started."""

    arms: tuple[str, ...] = ()
    reverts: tuple[int, ...] = ()
    faults: tuple[Fault, ...] = ()
    seed: int | None = None
    mode: ProbeMode | None = None
    probes: tuple[str, ...] | None = None
    timeout_s: float | None = None
    target: TargetChoice | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    ready_timeout_s: float | None = None

    @property
    def plain(self) -> bool:
        """Return True if the answer is the arms' plain verdict, and expectations do not count."""
        return bool(self.arms or self.reverts or self.faults)


@dataclass(frozen=True)
class ArmRun:
    """One arm to run. ``key`` names it among others; ``toggles`` are the fixes to revert, the arm's own included;
    ``keeper``: the address of the process that keeps the servers that runs start, and then lends it one; ``followed``:
    others come after it that have its engine. ``rework``: how its requests are served otherwise
    (``scenario/reworked.py``); ``logprobs``: those of its tokens are told."""

    key: str
    scenario: Scenario
    arm: str
    seed: int
    packs: tuple[ProbePack, ...] = ()
    toggles: tuple[Toggle, ...] = ()
    expectation: Expectation | None = None
    keeper: str | None = None
    rework: str = ""
    logprobs: bool = False
    followed: bool = False

    @property
    def reverts(self) -> tuple[int, ...]:
        return tuple(toggle.pr for toggle in self.toggles)

    @property
    def added_reverts(self) -> tuple[int, ...]:
        """The fixes that are reverted beside the arm's own, as a command line or the environment asks."""
        own = frozenset(self.scenario.arms[self.arm].revert if self.toggles else ())
        return tuple(toggle.pr for toggle in self.toggles if own.isdisjoint(toggle.numbers))

    @property
    def shown(self) -> str:
        """The arm as a reader is shown it: ``fixed - 27338`` where a fix is reverted that the arm has in place."""
        return f"{self.arm} - {', '.join(map(str, self.added_reverts))}" if self.added_reverts else self.arm

    @property
    def asked(self) -> Asked:
        """The arm's demands on its target. Raises ContentError."""
        return asked_of(self.scenario, self.arm)

    @property
    def target(self) -> TargetChoice:
        return self.scenario.target_of(self.arm)

    @property
    def target_name(self) -> str:
        """The target's name, as a run's outcome has it. Raises SpecDebugError for an unknown target."""
        return find_target(self.target).traits.name

    @property
    def options(self) -> dict[str, Any]:
        return self.scenario.engine_of(self.arm)

    @property
    def shape(self) -> EngineShape:
        return engine_shape(self.scenario, self.arm)

    def job(self, library: RunContent) -> Job:
        """Return the worker's job. Raises ContentError when the workload cannot be planned or the engine cannot be."""
        workload = library.workload(self.scenario, self.arm, self.seed)
        return self.job_of(TARGET, workload=pickle.dumps(reworked(self.rework, workload)))

    def job_of(self, target: str, **more: Any) -> Job:
        """Return a job with the arm and ``more`` in its payload. Raises ContentError.

        Parts are pickled apart, since unpickling one may import what a revert changes.
        """
        limits, device, engine = self.scenario.limits, self.asked.device, find_target(self.target)
        home = engine.home()
        payload = {
            "arm": self.arm,
            "seed": self.seed,
            "toggles": pickle.dumps(self.toggles),
            "packs": pickle.dumps(self.packs),
            "scenario": pickle.dumps(self.scenario),
            "keeper": self.keeper,
            "rework": self.rework,
            "logprobs": self.logprobs,
            "elsewhere": engine.traits.reverts,
            **more,
        }
        if home is not None:
            content = content_of((*self.packs, *self.toggles))
            patches = pickle.dumps(engine.patches(self.toggles, content))
            payload |= {"engine": engine.traits.name, "worker": target, "patches": patches}
        at_risk = device if device != "cpu" and (self.toggles or self.scenario.faults_of(self.arm)) else ""
        memory_mb, server = float(limits.memory_mb), place_of(self.target)
        return Job(self.key, target, payload, limits.timeout_s, memory_mb, device != "cpu", at_risk, server, home=home)

    def nest(self, payload: Mapping[str, Any]) -> Nest | None:
        """Return the process that workers of this arm, and of those that differ by workload and seed alone, are forked
        from; None where each is to begin by itself. ``payload``: of its job.

        It comes of one that has the same patches in force, whatever engine is built, and that, where it reverts
        anything, of one that has only the patches of no fix.
        """
        scenario, arm = self.scenario, self.arm
        oracles, mode = scenario.oracles_of(arm).to_dict(), scenario.arms[arm].mode
        alike = [repr(self.target), self.options, self.reverts, oracles, mode, bool(scenario.faults_of(arm))]
        facts = json.dumps(alike, sort_keys=True, default=str).encode() + payload["packs"] + payload["patches"]
        patched = _patched(payload["patches"])
        if not find_target(self.target).forks(self.options):
            return patched
        return Nest(hashlib.sha256(facts).hexdigest(), BUILD, dict(payload), patched)

    @property
    def likeness(self) -> str:
        """Text that is equal for runs that may share a nest (:meth:`nest`), and for some that may not."""
        return repr((self.target, self.scenario.name, self.arm, self.options, self.reverts))

    def ledger(self) -> Ledger:
        return Ledger(self.target_name, deadline=self.scenario.limits.exceeded == "hang")

    def at_fault(self, message: str, option: tuple[str, ...]) -> SpecDebugError:
        """Return a worker's complaint about the scenario, with the place of the engine option in question, if any."""
        if option:
            return option_error(self.scenario, self.arm, option, message)
        path = str(self.scenario.path)
        return SpecDebugError(message if message.startswith(path) else f"{path}: arm '{self.arm}': {message}")


def _patched(patches: bytes) -> Nest:
    """The process that has these patches in force."""
    every = pickle.loads(patches)
    alone = pickle.dumps({number: found for number, found in every.items() if number == 0})
    base = Nest(hashlib.sha256(alone).hexdigest(), REVERT, {"patches": alone, "base": True})
    if every.keys() <= {0}:
        return base
    return Nest(hashlib.sha256(patches).hexdigest(), REVERT, {"patches": patches, "base": False}, base)


def nested(run: ArmRun, job: Job) -> Job:
    """The job, its worker forked from a process with the engine built, where that has a home and no GPU: a process that
    has one cannot be forked."""
    return job if job.home is None or job.uses_gpu else dataclasses.replace(job, nest=run.nest(job.payload))


AnyRun = TypeVar("AnyRun", bound=ArmRun)


def run_as(kind: type[AnyRun], run: ArmRun, **more: Any) -> AnyRun:
    facts = {each.name: getattr(run, each.name) for each in dataclasses.fields(ArmRun)}
    return kind(**{**facts, **more})


@dataclass(frozen=True)
class ArmResult:
    """The outcome of an arm run. ``against``: the comparison with a baseline, whose losses the outcome has."""

    run: ArmRun
    outcome: Outcome
    against: Against | None = None

    @property
    def met(self) -> bool | None:
        """Return True if the outcome was expected, None without an expectation, False if cut short."""
        if self.run.expectation is None:
            return None
        # What the machine failed was cut short even if unknown was expected: it was expected of the code.
        if self.outcome.interrupted or (self.outcome.machine is not None and self.outcome.verdict == "unknown"):
            return False
        return self.run.expectation.met_by(self.outcome.verdict, self.outcome.signature, self.outcome.seen)

    @property
    def to_locate(self) -> bool:
        """Return True if its failure may have begun before what names it."""
        expected = self.run.expectation
        return may_have_begun_before(self.outcome, () if expected is None else expected.signatures)


def as_it_should(result: ArmResult) -> bool:
    """Return True if an arm met its expectation, or passed where there was none."""
    return result.outcome.verdict == "pass" if result.met is None else result.met


@dataclass(frozen=True)
class Replay:
    """The results of one replay; those known by then where it was ``interrupted``. ``left_out``: arms that are not run
    on their target, which have no part in the answer."""

    scenario: Scenario
    results: tuple[ArmResult, ...]
    wall_s: float
    interrupted: bool = False
    left_out: tuple[LeftOut, ...] = ()

    @property
    def plain(self) -> bool:
        """True if nothing was expected, so that the answer is the plain verdict."""
        return all(result.run.expectation is None for result in self.results)

    @property
    def exit_code(self) -> int:
        """If plain, the worst verdict's code, fail before unknown before pass; 128 + N after signal N.

        Else 0 when every arm met its expectation, 1 when one was contradicted, 125 when others came to no verdict.
        """
        if self.interrupted:
            return interrupts.exit_code()
        verdicts = [r.outcome.verdict for r in self.results if self.plain or not r.met]
        if "fail" in verdicts or (not self.plain and "pass" in verdicts):
            return EXIT_CODES["fail"]
        return EXIT_CODES["unknown" if "unknown" in verdicts else "pass"]


class RunContent(Protocol):
    """A source of packs, toggles and planned requests."""

    def workload(self, scenario: Scenario, arm: str, seed: int) -> Workload: ...

    def packs(self, names: Sequence[str]) -> tuple[ProbePack, ...]: ...

    def toggles(self, numbers: Sequence[int], target: TargetChoice = DEFAULT) -> tuple[Toggle, ...]: ...


@dataclass(frozen=True)
class PlannedRuns:
    """A scenario's runs, and the arms that are not run on their target."""

    scenario: Scenario
    runs: tuple[ArmRun, ...]
    left_out: tuple[LeftOut, ...] = ()


def planned(scenario: Scenario, choices: Choices, library: RunContent) -> PlannedRuns:
    """Return the arm runs that the choices ask for.

    Raises SpecDebugError for an unknown arm, pack, fix or target, and a fault that cannot act in its arm.
    """
    for name in choices.arms:
        if name not in scenario.arms:
            raise SpecDebugError(f"{scenario.path}: no arm '{name}'{did_you_mean(name, scenario.arms)}")
    names = list(dict.fromkeys(choices.arms)) or list(scenario.arms)
    if (choices.reverts or choices.faults) and not choices.arms:
        names = names[:1]
    changed = _with_choices(scenario, choices)
    without = left_out(changed, names, library)
    runs = []
    for name in names:
        if any(name == each.arm for each in without):
            continue
        target = changed.target_of(name)
        check_features(changed, name)
        if target == DEFAULT:
            check_faults(changed, name)
        else:
            asked_of(changed, name)
        run = ArmRun(
            key=name,
            scenario=changed,
            arm=name,
            seed=changed.seed if choices.seed is None else choices.seed,
            packs=library.packs(changed.probes_of(name)),
            toggles=library.toggles((*changed.arms[name].revert, *choices.reverts), target),
            expectation=None if choices.plain else changed.expectation_of(name),
        )
        runs.append(run)
    return PlannedRuns(scenario, tuple(runs), without)


def plan(scenario: Scenario, choices: Choices, library: RunContent) -> tuple[ArmRun, ...]:
    """Return every arm run that the choices ask for. Raises as :func:`planned`, and NotOnTarget where one is left out
    of those named, or all are."""
    found = planned(scenario, choices, library)
    if found.left_out and (choices.plain or not found.runs):
        raise refusal(found.left_out)
    return found.runs


def _with_choices(scenario: Scenario, choices: Choices) -> Scenario:
    if choices.target is not None:
        scenario = scenario.on(choices.target)
    if choices.ready_timeout_s is not None:
        scenario = scenario.ready_within(choices.ready_timeout_s)
    arms = {
        arm.name: dataclasses.replace(
            arm,
            mode=choices.mode or arm.mode,
            probes=choices.probes or arm.probes,
            faults=(*scenario.faults_of(arm.name), *choices.faults) if choices.faults else arm.faults,
        )
        for arm in scenario.arms.values()
    }
    slower = max(find_target(scenario.target_of(name)).traits.slowness for name in arms)
    timeout_s = scenario.limits.timeout_s * slower if choices.timeout_s is None else choices.timeout_s
    limits = dataclasses.replace(scenario.limits, timeout_s=timeout_s)
    return dataclasses.replace(scenario, arms=arms, limits=limits, overrides=dict(choices.engine))


class Progress(Protocol):
    """A watcher of runs while they run."""

    def arm_started(self, run: ArmRun) -> None: ...

    def arm_moved(self, run: ArmRun, ledger: Ledger) -> None: ...

    def arm_ended(self, result: ArmResult) -> None: ...

    def waiting(self) -> None: ...

    def notice(self, text: str) -> None: ...


class ArmListener:
    """Hears what workers report and keeps a ledger for each arm run, by job name."""

    def __init__(self) -> None:
        self.runs: dict[str, ArmRun] = {}
        self.ledgers: dict[str, Ledger] = {}
        self._used: set[str] = set()

    def started(self, job: Job) -> None:
        self.ledgers[job.name] = self.runs[job.name].ledger()

    def event(self, job: Job, event: dict[str, Any]) -> None:
        self.ledgers[job.name].fold(event)
        if event.get("event") == "stack":
            self._used.add(event["device"])

    def fault_of(self, job: Job) -> SpecDebugError | None:
        ledger = self.ledgers[job.name]
        if ledger.usage_error is None or ledger.unavailable:
            return None
        return self.runs[job.name].at_fault(ledger.usage_error, ledger.usage_option)

    def failure_of(self, job: Job, outcome: Outcome) -> MachineFailure | None:
        return outcome.machine or self.ledgers[job.name].lost(self.device_of(job), self._used)

    def doubt_of(self, job: Job, end: WorkerEnd) -> MachineFailure | None:
        """Return the machine's failure that a hang amounts to if its device does not answer; None of any other end."""
        if end.kind != "timeout" or self.device_of(job) == "cpu":
            return None
        return MachineFailure("device", f"no answer after {job.name} had hung for {end.wall_s:.0f} s")

    def device_of(self, job: Job) -> str:
        return self.runs[job.name].asked.device

    def waiting(self) -> None:
        """Do nothing meanwhile."""


class BaselineJudge(Protocol):
    """Holds runs against a baseline."""

    def judge(self, run: ArmRun, outcome: Outcome) -> tuple[Outcome, Against]: ...


class Watched(TypedDict, total=False):
    """Those that watch runs: ``progress`` is told of each, ``recording`` keeps their steps, ``baseline`` judges their
    accept lengths."""

    progress: Progress | None
    recording: Recording | None
    baseline: BaselineJudge | None


class _Running(ArmListener):
    """Runs arms in a pool and collects their results, by job name."""

    def __init__(self, pool: WorkerPool, runs: Sequence[ArmRun], watched: Watched) -> None:
        super().__init__()
        self.runs = {run.key: run for run in runs}
        self.progress = watched.get("progress")
        self.recording = watched.get("recording")
        self._baseline = watched.get("baseline")
        self.results: dict[str, ArmResult] = {}
        self.spans: dict[str, tuple[float, float]] = {}
        self._pool = pool
        self._watch = DeviceWatch(pool, self)
        self._told: set[str] = set()
        self._hung: list[tuple[Job, WorkerEnd]] = []
        self._alike = Counter(run.likeness for run in runs)

    def run(self, library: RunContent) -> None:
        """Run them all; those that the machine cannot run any more come to no verdict."""
        if any(run.target == DEFAULT and run.asked.device != "cpu" for run in self.runs.values()):
            self._pool.prepare(LOAD_TRITON, None)
        try:
            self._pool.run((self._job(run, library) for run in self.runs.values()), self._watch)
            for device in sorted({self.device_of(job) for job, _ in self._hung}):
                self._gone(device)
        except MachineFailed as error:
            for run in self.runs.values():
                self._leave_out(run, error.failure)

    def _job(self, run: ArmRun, library: RunContent) -> Job:
        def may_start() -> bool:
            failure = self._gone(run.asked.device)
            if failure is not None:
                self._leave_out(run, failure)
            return failure is None

        job = run.job(library)
        if run.followed or self._alike[run.likeness] > 1:
            job = nested(run, job)
        return dataclasses.replace(job, may_start=may_start)

    def _gone(self, device: str) -> MachineFailure | None:
        failure = self._watch.gone(device)
        hung = [each for each in self._hung if self.device_of(each[0]) == device]
        self._hung = [each for each in self._hung if each not in hung]
        for job, end in hung if failure is not None else ():
            self.results[job.name] = self._result(job, dataclasses.replace(end, failure=failure))
            if self.progress is not None:
                self.progress.notice(f"{job.name} hung on a device that is gone, which says nothing of it")
        return failure

    def _leave_out(self, run: ArmRun, failure: MachineFailure) -> None:
        if run.key in self.results:
            return
        if self.progress is not None and failure.reason not in self._told:
            self.progress.notice(f"{failure.reason}; arms that need it are not run")
        self._told.add(failure.reason)
        self.results[run.key] = ArmResult(run, not_run(failure, run.target_name))

    def started(self, job: Job) -> None:
        super().started(job)
        self.spans[job.name] = (time.monotonic(), time.monotonic())
        if self.progress is not None:
            self.progress.arm_started(self.runs[job.name])

    def event(self, job: Job, event: dict[str, Any]) -> None:
        super().event(job, event)
        if self.recording is not None:
            self.recording.take(job.name, event)
        if fault := self.fault_of(job):
            raise fault
        if self.progress is not None:
            self.progress.arm_moved(self.runs[job.name], self.ledgers[job.name])

    def ended(self, job: Job, end: WorkerEnd) -> None:
        result = self.results[job.name] = self._result(job, end)
        self.spans[job.name] = (self.spans[job.name][0], time.monotonic())
        failure = result.outcome.machine
        if failure is not None and failure.cause == "device":
            self._watch.doubt(self.device_of(job), failure)
        elif failure is None and (doubt := self.doubt_of(job, end)) is not None:
            self._watch.doubt(self.device_of(job), doubt)
            self._hung.append((job, end))
        if self.progress is not None:
            self.progress.arm_ended(result)

    def _result(self, job: Job, end: WorkerEnd) -> ArmResult:
        run, outcome, against = self.runs[job.name], self.ledgers[job.name].outcome(end), None
        outcome = dataclasses.replace(outcome, machine=self.failure_of(job, outcome))
        if self._baseline is not None:
            outcome, against = self._baseline.judge(run, outcome)
        self.ledgers[job.name].drop_log(outcome)
        return ArmResult(run, outcome, against)

    def waiting(self) -> None:
        if self.progress is not None:
            self.progress.waiting()


@dataclass(frozen=True)
class Ran:
    """The results of runs. ``results``: in the order of the runs; a signal (``interrupted``) leaves unknown what it cut
    short, and ``trouble``, such as a scenario that is itself at fault, leaves out what had not ended. ``spans``: the
    times, on the monotonic clock, from which to which the arms ran that began, by key."""

    results: tuple[ArmResult, ...]
    spans: Mapping[str, tuple[float, float]]
    interrupted: bool = False
    trouble: SpecDebugError | None = None


def run_through(pool: WorkerPool, library: RunContent, runs: Sequence[ArmRun], **watched: Unpack[Watched]) -> Ran:
    """Run arms whose keys differ until an error stops them. Runs that the machine cannot run are ``unknown``, and say
    so."""
    running = _Running(pool, runs, watched)
    stopped, trouble = until_stopped(lambda: running.run(library))
    if stopped == "interrupted":
        for run in runs:
            if run.key not in running.results:
                running.results[run.key] = ArmResult(run, run.ledger().outcome(_NEVER_BEGUN))
    results = tuple(running.results[run.key] for run in runs if run.key in running.results)
    return Ran(results, running.spans, stopped == "interrupted", trouble)


def run_arms(
    pool: WorkerPool, library: RunContent, runs: Sequence[ArmRun], **watched: Unpack[Watched]
) -> tuple[list[ArmResult], bool]:
    """Run arms as :func:`run_through`, and return their results, and True if a signal cut them short. Raises
    SpecDebugError when a worker finds the scenario itself at fault."""
    ran = run_through(pool, library, runs, **watched)
    if ran.trouble is not None:
        raise ran.trouble
    return list(ran.results), ran.interrupted


def replay(
    pool: WorkerPool, library: RunContent, scenario: Scenario, choices: Choices, **watched: Unpack[Watched]
) -> Replay:
    """Run the arms of a scenario that the choices ask for. Raises as :func:`plan` and :func:`run_arms`."""
    began = time.monotonic()
    results, interrupted = run_arms(pool, library, plan(scenario, choices, library), **watched)
    return Replay(scenario, tuple(results), time.monotonic() - began, interrupted)
