"""The engine's process: build the engine, and until the front goes away take its commands, step, tell what came of it.

Nothing of the engine is imported before the reverts are in place. One socket leads to the front: the order to start
comes pickled, everything after it is JSON lines. After each step the oracles of probes and guards look; what they find
is told and the engine goes on. The books of memory are checked when nothing is under way. An exception out of the
engine ends the process, for the state that it left is unknown: it is told as a violation first.
"""

import os
import select
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from specdebug import async_probe, kernel_memory
from specdebug.apps.serve.process import Launch
from specdebug.base.errors import InvalidOption, SpecDebugError
from specdebug.base.trial import stream
from specdebug.events import AfterStep, DeviceLost, Event, Stepped
from specdebug.faults.injector import Injector
from specdebug.run.oracles.base import Bench, Oracle, OracleSettings
from specdebug.run.oracles.findings import Guards, PoolsOracle, ProbesOracle
from specdebug.run.session_run import put_in_place, violation_of
from specdebug.scenario.grammar import OracleSpec
from specdebug.scenario.packs import activate, kernel_rules
from specdebug.targets.base import Asked, Busy, Opening, OverThere
from specdebug.targets.registry import find_target
from specdebug.verdict.deaths import device_lost
from specdebug.verdict.outcome import Violation
from specdebug.workers.device import before_termination, leave_now
from specdebug.workers.forkserver import be_ours
from specdebug.workers.machine_failure import machine_failure
from specdebug.workers.wire import LineReader, PipeSink, Sink, receive

T = TypeVar("T")

IDLE_LIMIT = 64  # steps an engine with work may do nothing at all before it counts as hanging
FRONT_GONE = (BrokenPipeError, ConnectionResetError)
"""What telling it something raises then; that is no failure of the engine."""
QUIET_S = 0.5  # seconds without anything to do, after which the books of memory are checked


def main(argv: Sequence[str]) -> int:
    """Serve the front at the other end of the socket whose number is the only argument; return the exit status."""
    channel = socket.socket(fileno=int(argv[0]))
    be_ours()
    order = receive(channel)
    if order is None:
        return 0
    try:
        return serve(order[1], channel, PipeSink(channel.fileno()))
    except FRONT_GONE:
        return 0


def serve(launch: Launch, channel: socket.socket, sink: PipeSink) -> int:
    """Build the engine and serve; return the exit status of this process."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # the front needs a core, too
    try:
        hits = put_in_place({toggle.pr: toggle.patches for toggle in launch.toggles})
        there = OverThere(kernels=kernel_rules(launch.packs, launch.mode))
        opening = Opening("serve", sink.emit, Busy(sink.emit), lambda: activate(launch.packs, launch.mode), there)
        session = find_target("embedded").open(launch.options, launch.seed, opening)
        injector = Injector(launch.faults, launch.seed, sink, stream)
        injector.attach(session.inside)
        loop = EngineLoop(session, channel, sink, injector, hits)
    except SpecDebugError as error:
        path, reason = (error.key_path, error.reason) if isinstance(error, InvalidOption) else ((), str(error))
        sink.emit("refused", message=reason, option=list(path), exit_code=error.exit_code)
        return 0
    except FRONT_GONE:
        raise
    except Exception as error:
        _tell_failure(error, 0, sink)
        return 1
    try:
        return loop.run()
    finally:
        session.close(False)


class EngineLoop:
    """Serves one engine. ``session`` is one of the embedded target; ``hits`` reads how often reverts' edits ran."""

    def __init__(
        self,
        session: Any,
        channel: socket.socket,
        sink: Sink,
        injector: Injector,
        hits: Callable[[], Mapping[str, Mapping[str, int]]],
    ) -> None:
        from specdebug.targets.logprobs import LogprobRecorder

        self._session = session
        self._engine = session.inside
        self._channel = channel
        self._sink = sink
        self._injector = injector
        self._hits = hits
        self._lines = LineReader()
        self._keys: dict[str, str] = {}
        """The front's keys of requests by their names: a name may be used again while its last use is still told of."""
        self._logprobs = LogprobRecorder(self._engine)
        self._step = self._idle = 0
        self._put_back: list[str] = []
        """The front's keys of requests that have given up their places since the last step."""
        self._checked = True
        settings = OracleSettings(OracleSpec(), Asked(self._engine.config.model), probes=True)
        bench = Bench(settings, session, None, self._tell, lambda rid, tie: None, lambda ids: "")
        self._oracles: list[Oracle] = [ProbesOracle(bench)]
        if self._engine.config.memory.guards:
            self._oracles.append(Guards(bench))
        self._books = PoolsOracle(bench)

    def run(self) -> int:
        """Serve until the front goes away; return the exit status of this process, 1 after a failure."""
        self._sink.emit("ready", vocab_size=self._session.vocab_size)
        undo = before_termination(self._salvage)
        try:
            while self._hear():
                self._advance()
            return 0
        except FRONT_GONE:
            raise
        except Exception as error:
            lost = device_lost(error)
            if lost:
                self._salvage()
            if isinstance(error, _Hanging):
                self._tell(Violation("hang", "", self._step, str(error)))
            else:
                _tell_failure(error, self._step + 1, self._sink)
        finally:
            undo()
        self._injector.finish()
        self._tell_coverage()
        if lost:  # everything is told: no destructor may touch the device any more
            leave_now()
        return 1

    def _hear(self) -> bool:
        """Take in what the front has sent, and wait for it while there is nothing to do. False once it is gone."""
        while True:
            working = self._session.has_work
            patience = 0.0 if working else None if self._checked else QUIET_S
            if not select.select([self._channel], [], [], patience)[0]:
                if working:
                    return True
                self._check_pools()
                continue
            data = self._channel.recv(1 << 20)
            if not data:
                return False
            for command in self._lines.feed(data):
                self._obey(command)

    def _obey(self, command: Mapping[str, Any]) -> None:
        """Do what the front asks for; of a request that has ended meanwhile nothing is done."""
        rid, idle = command.get("rid", ""), not self._session.has_work
        known = rid and self._keys.get(rid) == command["key"]
        match command["do"]:
            case "add":
                self._add(rid, command)
            case "abort":
                if known:
                    self._engine.abort(rid)
                    self._forget([rid])
                self._sink.emit("gauges", **self._gauges())
            case "put_back":
                if known and self._engine.put_back(rid):  # it waits behind all others, if it ran
                    self._put_back.append(command["key"])
            case "flush":
                if idle:  # else nothing is done, as in SGLang
                    self._engine.flush_cache()
                self._sink.emit("flushed", done=idle)
                self._sink.emit("gauges", **self._gauges())
            case "info":
                if idle:
                    self._check_pools()
                self._tell_coverage()

    def _add(self, rid: str, command: Mapping[str, Any]) -> None:
        """Take in a request. One that the engine rejects is the client's fault."""
        from specdebug.base.features import Features
        from specdebug.engine import SamplingParams

        sampling, wanted = command["sampling"].items(), command["logprobs"]
        given: Any = {name: tuple(each) if isinstance(each, list) else each for name, each in sampling}
        try:
            self._engine.add_request(
                rid,
                command["ids"],
                SamplingParams(**given | {"features": Features(**given.get("features", {}))}),
                speculative=command["speculative"],
                cache_limit=(wanted or {}).get("start"),
                ahead=command["ahead"],
            )
        except SpecDebugError as error:
            if error.exit_code != 2:
                raise
            self._sink.emit("rejected", key=command["key"], why=str(error))
            return
        self._keys[rid] = command["key"]
        self._checked = False
        if wanted is not None:
            self._logprobs.want(rid, wanted)

    def _forget(self, ended: Iterable[str]) -> None:
        self._engine.forget_finished()
        for rid in ended:
            self._logprobs.forget(rid)
            del self._keys[rid]

    def _advance(self) -> None:
        """Run one step and tell what came of it; what it recorded before it failed is told first. Raises _Hanging."""
        step = self._step + 1
        began = time.perf_counter()
        try:
            report = self._engine.step()
        except Exception as error:
            if not device_lost(error):
                self._look(AfterStep(step, True))
            raise
        seconds = time.perf_counter() - began
        self._look(AfterStep(step, False))
        self._step = step
        self._tell_step(report, seconds)
        self._idle = self._idle + 1 if report.kind == "idle" and self._session.has_work else 0
        if self._idle > IDLE_LIMIT:
            raise _Hanging(f"the engine has work but did nothing for {IDLE_LIMIT} steps")

    def _tell_step(self, report: Stepped, seconds: float) -> None:
        ended = [self._engine.requests[rid] for rid in report.finished]
        retracted, self._put_back = self._put_back + [self._keys[rid] for rid in report.retracted], []
        self._sink.emit(
            "step",
            step=self._step,
            kind=report.kind,
            emitted=self._by_key(report.emitted),
            accept=self._by_key(report.accept_lengths),
            cached=self._by_key(report.cached),
            finished=self._by_key({each.rid: [each.finish_reason, each.matched_stop] for each in ended}),
            retracted=retracted,
            logprobs=self._by_key(self._logprobs.take(report.emitted)),
            s=round(seconds, 6),
            **self._gauges(),
        )
        if ended:
            self._forget(report.finished)

    def _by_key(self, values: Mapping[str, T]) -> dict[str, T]:
        """Values by the front's keys, and no longer by the requests' names."""
        return {self._keys[rid]: value for rid, value in values.items()}

    def _gauges(self) -> dict[str, int]:
        view = self._engine.view
        used = self._engine.config.usable_slots - view.cache.available
        return {"running": len(view.scheduler.holders), "waiting": len(view.scheduler.waiting), "used": used}

    def _tell_coverage(self) -> None:
        reached = {**async_probe.reached(), **kernel_memory.launches()}
        self._sink.emit("coverage", step=self._step, reached=reached, hits=self._hits(), **self._gauges())

    def _look(self, event: Event) -> None:
        """Tell what a step left behind; of one that has failed also what had not reached the host yet."""
        for oracle in self._oracles:
            oracle.on(event)

    def _salvage(self) -> None:
        """Tell what had reached the host before the device was lost."""
        self._look(DeviceLost(self._step + 1))

    def _check_pools(self) -> None:
        """Look at the books of memory, once after something was done."""
        self._checked = True
        self._books.on(AfterStep(self._step))

    def _tell(self, violation: Violation) -> None:
        self._sink.emit("violation", **asdict(violation))


def _tell_failure(error: Exception, step: int, sink: Sink) -> None:
    """Tell of an exception out of the engine: as the machine's failure, or as a violation in this step."""
    traceback.print_exception(error)
    machine = machine_failure(error)
    if machine is not None:
        sink.emit("machine", cause=machine.cause, line=machine.line)
    else:
        sink.emit("violation", **asdict(violation_of(error, step)))


class _Hanging(Exception):
    """The engine does nothing any more."""
