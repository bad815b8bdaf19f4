"""The engine's side: take the front's commands, step while there is work, tell the front what each step gave.

After each step the oracles of probes and guards look, as in a scenario's run; what they find is told and the engine
goes on. The books of memory are checked when nothing is under way. An exception out of the engine ends the process,
for the state that it left is unknown: it is told as a violation first.
"""

from __future__ import annotations

import select
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from specdebug import async_probe, kernel_memory
from specdebug.base.errors import SpecDebugError
from specdebug.events import AfterStep, DeviceLost, Stepped
from specdebug.faults.injector import Injector
from specdebug.run.oracles.base import Bench, Oracle, OracleSettings
from specdebug.run.oracles.findings import Guards, PoolsOracle, ProbesOracle
from specdebug.run.session_run import violation_of
from specdebug.scenario.grammar import OracleSpec
from specdebug.targets.base import Asked
from specdebug.verdict.device_errors import device_lost
from specdebug.verdict.outcome import Violation
from specdebug.workers.device import before_termination, leave_now
from specdebug.workers.machine_failure import machine_failure
from specdebug.workers.wire import LineReader, Sink

T = TypeVar("T")

IDLE_LIMIT = 64
"""Steps an engine with work may do nothing at all before it counts as hanging."""
FRONT_GONE = (BrokenPipeError, ConnectionResetError)
"""What telling it something raises then; that is no failure of the engine."""
QUIET_S = 0.5
"""Seconds without anything to do, after which the books of memory are checked."""


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
        from specdebug.apps.serve.logprobs import LogprobRecorder

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
        except _Hanging as error:
            self._tell(Violation("hang", "", self._step, str(error)))
            lost = False
        except Exception as error:
            self._fail(error)
            lost = device_lost(error)
        finally:
            undo()
        self._injector.finish()
        self._tell_coverage()
        if lost:  # everything is told: no destructor may touch the device any more
            leave_now()
        return 1

    def close(self) -> None:
        """Nothing is served any more."""
        self._session.close(False)

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
        """Do what the front asks for. A request that the engine rejects is the client's fault."""
        match command["do"]:
            case "add":
                self._add(command)
            case "abort":
                self._abort(command["rid"], command["key"])
            case "put_back":
                self._give_up_place(command["rid"], command["key"])
            case "flush":
                self._flush()
            case "info":
                if not self._session.has_work:
                    self._check_pools()
                self._tell_coverage()

    def _add(self, command: Mapping[str, Any]) -> None:
        from specdebug.engine import SamplingParams

        rid = command["rid"]
        given: Any = {
            name: tuple(each) if isinstance(each, list) else each for name, each in command["sampling"].items()
        }
        try:
            self._engine.add_request(
                rid,
                command["ids"],
                SamplingParams(**given),
                speculative=command["speculative"],
                cache_limit=(command["logprobs"] or {}).get("start"),
                ahead=command["ahead"],
            )
        except SpecDebugError as error:
            if error.exit_code != 2:
                raise
            self._sink.emit("rejected", key=command["key"], why=str(error))
            return
        self._keys[rid] = command["key"]
        self._checked = False
        if command["logprobs"] is not None:
            self._logprobs.want(rid, command["logprobs"])

    def _abort(self, rid: str, key: str) -> None:
        """End a request, unless it has ended meanwhile."""
        if self._keys.get(rid) == key:
            self._engine.abort(rid)
            self._forget([rid])
        self._tell_gauges()

    def _give_up_place(self, rid: str, key: str) -> None:
        """Have a request that runs wait behind all others; one that does not is left where it is."""
        if self._keys.get(rid) == key and self._engine.put_back(rid):
            self._put_back.append(key)

    def _forget(self, ended: Iterable[str]) -> None:
        self._engine.forget_finished()
        for rid in ended:
            self._logprobs.forget(rid)
            del self._keys[rid]

    def _flush(self) -> None:
        """Empty the prefix cache, unless a request is served: then nothing is done, as in SGLang."""
        idle = not self._session.has_work
        if idle:
            self._engine.flush_cache()
        self._sink.emit("flushed", done=idle)
        self._tell_gauges()

    def _advance(self) -> None:
        """Run one step and tell what came of it; what it recorded before it failed is told first. Raises _Hanging."""
        step = self._step + 1
        began = time.perf_counter()
        try:
            report = self._engine.step()
        except Exception as error:
            if not device_lost(error):
                self._inspect(step, failed=True)
            raise
        seconds = time.perf_counter() - began
        self._inspect(step, failed=False)
        self._step = step
        self._tell_step(report, seconds)
        self._watch_progress(report)

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

    def _tell_gauges(self) -> None:
        self._sink.emit("gauges", **self._gauges())

    def _tell_coverage(self) -> None:
        reached = {**async_probe.reached(), **kernel_memory.launches()}
        self._sink.emit("coverage", step=self._step, reached=reached, hits=self._hits(), **self._gauges())

    def _inspect(self, step: int, *, failed: bool) -> None:
        """Tell what a step left behind; of one that has failed also what had not reached the host yet."""
        for oracle in self._oracles:
            oracle.on(AfterStep(step, failed))

    def _salvage(self) -> None:
        """Tell what had reached the host before the device was lost."""
        for oracle in self._oracles:
            oracle.on(DeviceLost(self._step + 1))

    def _check_pools(self) -> None:
        """Look at the books of memory, once after something was done."""
        self._checked = True
        self._books.on(AfterStep(self._step))

    def _watch_progress(self, report: Stepped) -> None:
        self._idle = self._idle + 1 if report.kind == "idle" and self._session.has_work else 0
        if self._idle > IDLE_LIMIT:
            raise _Hanging(f"the engine has work but did nothing for {IDLE_LIMIT} steps")

    def _fail(self, error: Exception) -> None:
        """Tell of an exception out of the engine."""
        if device_lost(error):
            self._salvage()
        tell_failure(error, self._step + 1, self._sink)

    def _tell(self, violation: Violation) -> None:
        self._sink.emit("violation", **asdict(violation))


def tell_failure(error: Exception, step: int, sink: Sink) -> None:
    """Tell of an exception out of the engine: as the machine's failure, or as a violation in this step."""
    traceback.print_exception(error)
    machine = machine_failure(error)
    if machine is not None:
        sink.emit("machine", cause=machine.cause, line=machine.line)
    else:
        sink.emit("violation", **asdict(violation_of(error, step)))


class _Hanging(Exception):
    """The engine does nothing any more."""
