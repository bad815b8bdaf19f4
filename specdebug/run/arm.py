"""One arm, inside its worker: put the reverts in place, build the engine, run the workload, look again.

The worker imports this module before any revert is in place, so it imports nothing of the engine, and of the scenario's
classes only what :func:`run_arm` unpickles afterwards. Everything is reported as it happens (see ``ledger.py``),
whatever goes wrong too, so this function only returns.
"""

from __future__ import annotations

import pickle
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specdebug.base.abilities import INSIDE, Ability
from specdebug.base.content import shipped_root
from specdebug.base.errors import ContentError, InvalidOption, SpecDebugError
from specdebug.scenario.text import Decode, decoder, load_tokenizer
from specdebug.targets.base import Asked, Opening, OverThere, Session, Target
from specdebug.targets.registry import find_target
from specdebug.verdict.device_errors import device_lost, out_of_memory
from specdebug.verdict.outcome import EXIT_CODES
from specdebug.workers.coredump import wait_for_coredump
from specdebug.workers.device import DeviceUnavailable, leave_now
from specdebug.workers.machine_failure import MachineFailed, machine_failure
from specdebug.workers.termination import before_termination
from specdebug.workers.wire import Sink

if TYPE_CHECKING:
    from specdebug.faults.injector import Injector
    from specdebug.faults.model import Fault
    from specdebug.patching import Applied
    from specdebug.patching.toggles import Toggle
    from specdebug.run.judge import Judge
    from specdebug.run.loop import RunLoop
    from specdebug.scenario.grammar import Scenario


class ArmOnlooker(Protocol):
    """Somebody who wants to see an arm's run."""

    def building(self) -> None:
        """The engine is about to be built, its graphs to be captured."""

    def built(self, loop: RunLoop) -> None:
        """It is there and has done nothing yet."""


def run_arm(payload: Mapping[str, Any], sink: Sink, onlooker: ArmOnlooker | None = None) -> None:
    """Run the arm that ``replay.ArmRun.job`` packed. One that costs this process its device ends the process too."""
    try:
        _Arm(payload, sink, onlooker).run()
    except DeviceUnavailable as error:
        sink.emit("usage", message=str(error), option=["device"], unavailable=True)
    except InvalidOption as error:
        sink.emit("usage", message=error.reason, option=list(error.key_path))
    except SpecDebugError as error:
        sink.emit("usage", message=str(error))


class _Noting:
    """Passes events on, and notes whether one of them was a violation."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.violated = False

    def emit(self, event: str, **fields: Any) -> None:
        self.violated = self.violated or event == "violation"
        self._sink.emit(event, **fields)


class _Busy:
    """The engine's words on what it is busy with, and the kernels compiled meanwhile, as one line at a time."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._said = ""

    def said(self, text: str) -> None:
        self._said = text
        self._sink.emit("progress", text=text)

    def compiling(self, kernel: str) -> None:
        self._sink.emit("progress", text=f"compiling {kernel}")

    def compiled(self) -> None:
        self._sink.emit("progress", text=self._said)

    def over(self) -> None:
        """A new stage begins; the event that says so ends what was said before it."""
        self._said = ""


class _Arm:
    def __init__(self, payload: Mapping[str, Any], sink: Sink, onlooker: ArmOnlooker | None) -> None:
        self._payload = payload
        self._onlooker = onlooker
        self._sink = _Noting(sink)
        self._stages: dict[str, float] = {}
        self._busy = _Busy(sink)
        self._coredump: str | None = None
        self._lost = False
        self._injector: Injector | None = None
        self._reverts: Sequence[Toggle] = ()
        self._told_hits: Mapping[str, Mapping[str, int]] = {}
        self._session: Session | None = None

    def run(self) -> None:
        with self._stage("revert"):
            hits = self._revert()
        if hits is None:
            return
        scenario: Scenario = pickle.loads(self._payload["scenario"])
        try:
            with self._stage("build"):
                loop, judge = self._build(scenario)
                if self._onlooker is not None:
                    self._onlooker.built(loop)
            self._serve(loop, judge)
        except MachineFailed as error:
            self._sink.emit("machine", cause=error.failure.cause, line=error.failure.line)
        except SpecDebugError as error:
            if error.exit_code == EXIT_CODES["unknown"] or _lacks_flashinfer(error):
                self._sink.emit("impossible", reason=str(error), unavailable=True)
            elif error.exit_code == 2:
                raise _placed(error, scenario, self._payload["arm"]) from None
            else:
                self._fail(error)
        except Exception as error:
            self._fail(error)
        finally:
            from specdebug import async_probe, kernel_memory

            if self._injector is not None:
                self._injector.finish()
            server = None if self._session is None else self._session.server
            for told in () if server is None else server.new_injections():
                self._sink.emit(told["ledger"], **{name: told[name] for name in told if name != "ledger"})
            for lost in () if server is None else server.lost():
                self._sink.emit("lost", text=str(lost), stand_in=lost.stand_in)
            here = {**async_probe.reached(), **kernel_memory.launches()}
            reached = here if server is None else dict(server.reached())
            self._sink.emit("coverage", reached=reached, hits=hits())
            if self._session is not None:
                self._session.close(not self._sink.violated)
        self._sink.emit("done", stages_s=self._stages, peak_rss_mb=_peak_rss_mb())
        if self._lost:  # everything is reported: end here, while the engine still holds what it had on the device
            if self._coredump is not None:
                wait_for_coredump(self._coredump)
            leave_now()

    def _fail(self, error: Exception) -> None:
        """Report an exception outside the run loop; one of a machine that is too small says nothing of the engine."""
        from specdebug.run.exceptions import beyond_the_machine, violation_of

        traceback.print_exc()
        machine = next(filter(None, map(machine_failure, _chain(error))), None)
        if machine is not None:
            self._sink.emit("machine", cause=machine.cause, line=machine.line)
            self._lost = machine.cause == "device"
            return
        memory = next(filter(None, map(out_of_memory, _chain(error))), None)
        self._lost = device_lost(error)
        beyond = beyond_the_machine(error)
        if memory is not None and not self._lost:
            beyond = f"{memory} (while loading or capturing graphs)"
        if beyond:
            self._sink.emit("impossible", reason=beyond, unavailable=True)
            return
        self._sink.emit("violation", **asdict(violation_of(error, 0)))

    def _revert(self) -> Callable[[], dict[str, dict[str, int]]] | None:
        """Put the fixes' reverts in place; returns a reader of how often each edit has run, by fix, or None when they
        cannot be put in place, which makes the run impossible rather than the scenario wrong."""
        from specdebug.patching import PatchError, apply

        toggles = pickle.loads(self._payload["toggles"])
        if self._payload["elsewhere"]:  # the target itself has them reverted, where its engine runs
            self._reverts = toggles
            self._sink.emit("reverts", hits={})
            return self._hits_elsewhere
        try:
            applied = apply([patch for toggle in toggles for patch in toggle.patches], "import")
        except PatchError as error:
            self._sink.emit("impossible", reason=str(error))
            return None

        hits = partial(hits_of, toggles, applied)
        self._sink.emit("reverts", hits=hits())
        return hits

    def _over_there(self, mode: str | None, shows: frozenset[Ability], faults: tuple[Fault, ...]) -> OverThere:
        """The arm's reverts, probes and faults, and what its oracles look at, for an engine that runs elsewhere; of
        others, its kernels."""
        from specdebug.scenario.packs import kernel_rules, rules

        packs = pickle.loads(self._payload["packs"])
        if not self._payload["elsewhere"]:
            return OverThere(kernels=kernel_rules(packs, mode))
        roots = {Path(each.path).resolve().parents[1] for each in (*packs, *self._reverts)} - {shipped_root()}
        return OverThere(
            tuple(self._reverts),
            tuple(pack.name for pack in packs),
            mode,
            tuple(sorted(map(str, roots))),
            None if faults else self._payload.get("keeper"),  # a damaged engine is lent to nobody else
            rules(packs, mode),
            kernel_rules(packs, mode),
            self._payload.get("tape"),
            tuple(sorted(shows)),
            faults,
            self._payload["seed"],
        )

    def _hits_elsewhere(self) -> dict[str, dict[str, int]]:
        from specdebug.targets.settings import engine_of

        server = None if self._session is None else self._session.server
        told = self._told_hits if server is None else server.hits()
        engine = engine_of(pickle.loads(self._payload["scenario"]).target_of(self._payload["arm"]))
        # A fix that the engine lacks, and is given, need not run.
        wanted = {str(toggle.pr) for toggle in self._reverts if engine not in toggle.mends}
        return {number: dict(told.get(number, {})) for number in sorted(wanted)}

    def _serve(self, loop: RunLoop, judge: Judge) -> None:
        from specdebug.run.loop import Stopped

        undo = before_termination(partial(self._speak_last, loop))
        try:
            with self._stage("run"):
                loop.run()
                loop.settle()
            for note in judge.notes():
                self._note(note)
            judge.active = False  # what is served again is compared with what was judged
            for oracle in (each for each in judge.oracles if each.stage is not None):
                with self._stage(str(oracle.stage)), loop.noticing_loss():
                    oracle.after_run(loop)
                    loop.settle()
        except Stopped:
            self._lost = loop.lost
        finally:
            undo()
            self._sink.emit("looked", counts=dict(judge.looks))

    def _speak_last(self, loop: RunLoop) -> None:
        """C++ code ends this process: report what is known, and leave the driver time for its core dump."""
        loop.last_words()
        if self._coredump is not None:
            wait_for_coredump(self._coredump)

    def _build(self, scenario: Scenario) -> tuple[RunLoop, Judge]:
        from specdebug.base.random_streams import stream
        from specdebug.faults.injector import Injector
        from specdebug.run.driver import WorkloadDriver
        from specdebug.run.loop import RunLoop
        from specdebug.run.oracles.base import OracleSettings
        from specdebug.run.oracles.registry import needed_by
        from specdebug.scenario.packs import activate

        arm, seed, packs = self._payload["arm"], self._payload["seed"], pickle.loads(self._payload["packs"])
        target, options = find_target(scenario.target_of(arm)), scenario.engine_of(arm)
        asked = target.asked(options)
        if "probes" not in target.traits.shows:
            packs = ()

        def before() -> None:
            activate(packs, scenario.arms[arm].mode)
            if self._onlooker is not None:
                self._onlooker.building()

        settings = OracleSettings(scenario.oracles_of(arm), asked)
        shows = INSIDE & target.traits.shows & needed_by(settings)
        there = self._over_there(scenario.arms[arm].mode, shows, scenario.faults_of(arm))
        label = f"{scenario.name}-{arm}"
        opening = Opening(label, self._say, self._busy, before, there)
        self._session = session = target.open(options, seed, opening)
        asked = session.asked or asked
        workload, faults = pickle.loads(self._payload["workload"]), scenario.faults_of(arm)
        self._sink.emit(
            "setup", probes_enabled=len(packs), requests=len(workload.requests), faults=[str(each) for each in faults]
        )
        decode = decoder(load_tokenizer(asked.model))
        judge = self._judge(scenario, asked, decode, session)
        self._tell_limits(target, judge, asked)
        session.observe(judge)
        if "faults" in session.shows and session.inside is not None:
            self._injector = Injector(faults, seed, self._sink, stream)
            self._injector.attach(session.inside)
        loop = RunLoop(
            session,
            WorkloadDriver(workload),
            self._sink,
            judge,
            max_steps=scenario.limits.max_steps,
            decode=decode,
            injector=self._injector,
        )
        return loop, judge

    def _tell_limits(self, target: Target, judge: Judge, asked: Asked) -> None:
        """Name what this target cannot show of what was asked for, and the options that mean nothing to it."""
        self._sink.emit(
            "target",
            name=target.traits.name,
            lacks=target.traits.lacks,
            looking=[oracle.name for oracle in judge.oracles],
            cannot_show=[str(blind) for blind in judge.cannot_show],
        )
        if asked.unused:
            self._note(f"target {target.traits.name} has no use for engine options {', '.join(asked.unused)}")

    def _say(self, event: str, **fields: Any) -> None:
        """Pass an event of the target on, and remember where a core dump would be written, and how often edits ran."""
        if event == "stack":
            self._coredump = fields.get("coredump")
        if event == "reverts":
            self._told_hits = fields["hits"]
        self._sink.emit(event, **fields)

    def _judge(self, scenario: Scenario, asked: Asked, decode: Decode, session: Session) -> Judge:
        """The oracles, with a reference model only if something is to be compared with it."""
        from specdebug.run.dense import DenseReference
        from specdebug.run.judge import Judge
        from specdebug.run.oracles.base import OracleSettings

        # A session with probes is asked even without packs: reading them is where a failed kernel may first show.
        probes = "probes" in session.shows or (bool(pickle.loads(self._payload["packs"])) and not asked.probed)
        settings = OracleSettings(scenario.oracles_of(self._payload["arm"]), asked, probes)
        return Judge(
            settings,
            session.reference if settings.reference is None else DenseReference(*settings.reference),
            report=lambda violation: self._sink.emit("violation", **asdict(violation)),
            tie=lambda rid, tie: self._sink.emit("tie", rid=rid, **asdict(tie)),
            decode=decode,
            clock=session.clock,
            shows=session.shows,
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._sink.emit("stage", name=name)
        self._busy.over()
        began = time.perf_counter()
        try:
            yield
        finally:
            self._stages[name] = round(time.perf_counter() - began, 4)

    def _note(self, text: str) -> None:
        self._sink.emit("note", text=text)


def hits_of(toggles: Sequence[Toggle], applied: Applied) -> dict[str, dict[str, int]]:
    """By fix, how often each of its edits has run."""
    counts = applied.hits()
    return {
        str(toggle.pr): {edit.id: counts[edit.id] for patch in toggle.patches for edit in patch.edits}
        for toggle in toggles
    }


def _lacks_flashinfer(error: SpecDebugError) -> bool:
    """Return True for a lack of this machine that other arms may not share. The reverts must be in place."""
    from specdebug.engine.errors import FlashInferError

    return isinstance(error, FlashInferError)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those it was raised over: a capture that memory ran out in ends with an error of its own."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _placed(error: SpecDebugError, scenario: Scenario, arm: str) -> SpecDebugError:
    """The error with the line of the group whose request the engine rejects; any other as it is."""
    rid = getattr(error, "rid", None)  # the class is not imported before the reverts are in place
    for number, group in enumerate(scenario.workload):
        if rid in group.rids:
            return ContentError(f"arm '{arm}': {error}", scenario.where("workload", number))
    return error


def _peak_rss_mb() -> float:
    """Highest resident memory of this process so far, in MiB (macOS counts in bytes, Linux in KiB)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak / 2**20 if sys.platform == "darwin" else peak / 2**10)
