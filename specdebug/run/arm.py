"""One arm, inside its worker: a run of a session (``session_run.py``) that serves a workload, judges, looks again."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from specdebug.base.abilities import INSIDE
from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.base.trial import stream
from specdebug.faults.declare import find_class
from specdebug.run.session_run import Hits, SessionRun
from specdebug.scenario.reworked import SET_BACK
from specdebug.scenario.text import Decode, decoder, load_tokenizer
from specdebug.targets.base import Asked, Opening, Session, Target
from specdebug.targets.registry import find_target
from specdebug.workers.device import before_termination, wait_for_coredump
from specdebug.workers.wire import Sink

if TYPE_CHECKING:
    from specdebug.faults.injector import Injector
    from specdebug.run.judge import Judge
    from specdebug.run.loop import RunLoop
    from specdebug.scenario.grammar import Scenario
    from specdebug.scenario.packs import ProbePack


InPlace = Callable[[], Hits] | None  # reads how often the edits have run where the reverts are in place already


class ArmOnlooker(Protocol):
    """A watcher of an arm's run."""

    def building(self) -> None:
        """The engine is about to be built, its graphs to be captured."""

    def built(self, loop: RunLoop) -> None:
        """It is there and has done nothing yet."""


def run_arm(
    payload: Mapping[str, Any], sink: Sink, onlooker: ArmOnlooker | None = None, *, in_place: InPlace = None
) -> None:
    """Run the arm that ``replay.ArmRun.job`` packed. One that costs this process its device ends the process too."""
    if _built is not None:
        _built.go_on(payload, sink, onlooker)
    else:
        _Arm(payload, sink, in_place, onlooker).run()


_built: _Arm | None = None
"""The arm whose engine is built already in a process that workers are forked from (:func:`build`)."""


def build(payload: Mapping[str, Any]) -> None:
    """Build an arm's engine in this process, for workers that are forked from it and run the arm, or another that is
    alike but for its workload and seed. Raises SpecDebugError, and what the engine raises."""
    global _built
    _built = _Arm(payload, _Kept(), None, None)
    _built.build()


class _Kept:
    """Keeps events, for each who goes on to be told them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def emit(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))


class _Arm(SessionRun):
    def __init__(self, payload: Mapping[str, Any], sink: Sink, in_place: InPlace, onlooker: ArmOnlooker | None) -> None:
        super().__init__(payload, sink, in_place)
        self._onlooker = onlooker
        self._injector: Injector | None = None
        self._hits: Callable[[], Hits] | None = None

    def build(self) -> None:
        """Do all that comes before the workload."""
        self._hits = super()._revert()
        if self._hits is None:
            raise SpecDebugError("its reverts cannot be put in place")
        self._open(pickle.loads(self._payload["scenario"]))

    def go_on(self, payload: Mapping[str, Any], sink: Sink, onlooker: ArmOnlooker | None) -> None:
        """Run an arm whose engine was built before this process was forked."""
        built: _Kept = self._sink.inner
        self._payload, self._onlooker, self._sink.inner, self._warm = payload, onlooker, sink, "built"
        for event, fields in built.events:
            sink.emit(event, **fields)
        self.run()

    def _revert(self) -> Callable[[], Hits] | None:
        return self._hits or super()._revert()

    def _work(self, scenario: Scenario) -> None:
        try:
            with self._stage("build"):
                loop, judge = self._build(scenario)
                if self._onlooker is not None:
                    self._onlooker.built(loop)
            self._serve(loop, judge)
        except SpecDebugError as error:
            raise _placed(error, scenario, self._payload["arm"]) from None

    def _leave(self) -> None:
        if self._injector is not None:
            self._injector.finish()

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
            self._sink.emit("looked", counts=dict(judge.bench.looks), rank_traces=dict(judge.bench.rank_traces))

    def _speak_last(self, loop: RunLoop) -> None:
        """C++ code ends this process: report what is known, and leave the driver time for its core dump."""
        loop.last_words()
        if self._coredump is not None:
            wait_for_coredump(self._coredump)

    def _open(self, scenario: Scenario) -> Session:
        from specdebug.run.oracles.base import OracleSettings
        from specdebug.run.oracles.registry import needed_by
        from specdebug.scenario.packs import activate

        arm = self._payload["arm"]
        target, options = find_target(scenario.target_of(arm)), scenario.engine_of(arm)

        def before() -> None:
            activate(self._packs(target), scenario.arms[arm].mode)
            if self._onlooker is not None:
                self._onlooker.building()

        settings = OracleSettings(scenario.oracles_of(arm), target.asked(options))
        shows = INSIDE & target.traits.shows & needed_by(settings)
        there = self._over_there(scenario.arms[arm].mode, shows)
        limit_s = scenario.limits.timeout_s
        opening = Opening(f"{scenario.name}-{arm}", self._say, self._busy, before, there, limit_s)
        self._session = target.open(options, self._payload["seed"], opening)
        return self._session

    def _packs(self, target: Target) -> tuple[ProbePack, ...]:
        return pickle.loads(self._payload["packs"]) if "probes" in target.traits.shows else ()

    def _build(self, scenario: Scenario) -> tuple[RunLoop, Judge]:
        from specdebug.faults.injector import Injector
        from specdebug.run.loop import RunLoop, WorkloadDriver

        arm, seed = self._payload["arm"], self._payload["seed"]
        target = find_target(scenario.target_of(arm))
        asked, packs = target.asked(scenario.engine_of(arm)), self._packs(target)
        session = self._session or self._open(scenario)
        session.begin(seed)
        asked = session.asked or asked
        workload, faults = pickle.loads(self._payload["workload"]), scenario.faults_of(arm)
        self._sink.emit(
            "setup", probes_enabled=len(packs), requests=len(workload.requests), faults=[str(each) for each in faults]
        )
        decode = decoder(load_tokenizer(asked.model))
        judge = self._judge(scenario, asked, decode, session)
        self._sink.emit(
            "target",
            name=target.traits.name,
            lacks=target.traits.lacks,
            looking=[oracle.name for oracle in judge.oracles],
            cannot_show=[str(blind) for blind in judge.cannot_show],
        )
        if asked.unused:
            self._note(f"target {target.traits.name} has no use for engine options {', '.join(asked.unused)}")
        session.observers.add(judge)
        if "faults" in session.shows and session.inside is not None:
            self._injector = Injector(faults, seed, self._sink, stream)
            self._injector.attach(session.inside)
        limit, driver = scenario.limits.max_steps, WorkloadDriver(workload)
        logprobs = self._payload["logprobs"] and "logprobs" in session.shows
        if logprobs:
            session.want_logprobs()
        how = {"logprobs": logprobs, "set_back": self._payload["rework"] == SET_BACK}
        return RunLoop(session, driver, self._sink, judge, max_steps=limit, decode=decode, **how), judge

    def _judge(self, scenario: Scenario, asked: Asked, decode: Decode, session: Session) -> Judge:
        """The oracles, with a reference model only if something is to be compared with it."""
        from specdebug.run.dense import DenseReference
        from specdebug.run.judge import Judge
        from specdebug.run.oracles.base import OracleSettings

        # A session with probes is asked even without packs: reading them is where a failed kernel may first show.
        probes = "probes" in session.shows or (bool(pickle.loads(self._payload["packs"])) and not asked.probed)
        arm = self._payload["arm"]
        disturbed = any(find_class(each.name).effect == "benign" for each in scenario.faults_of(arm))
        settings = OracleSettings(scenario.oracles_of(arm), asked, probes, disturbed)
        return Judge(
            settings,
            session,
            cast(Any, session.reference) if settings.reference is None else DenseReference(*settings.reference),
            report=lambda violation: self._sink.emit("violation", **asdict(violation)),
            tie=lambda rid, tie: self._sink.emit("tie", rid=rid, **asdict(tie)),
            decode=decode,
        )

    def _note(self, text: str) -> None:
        self._sink.emit("note", text=text)


def _placed(error: SpecDebugError, scenario: Scenario, arm: str) -> SpecDebugError:
    """The error with the line of the group whose request the engine rejects; any other as it is."""
    rid = getattr(error, "rid", None)  # the class is not imported before the reverts are in place
    for number, group in enumerate(scenario.workload):
        if rid in group.rids:
            return ContentError(f"arm '{arm}': {error}", scenario.where("workload", number))
    return error
