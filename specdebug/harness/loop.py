"""Drive an engine through a workload, step by step, and report everything it does.

Runs inside a worker. After each step come the probes' findings, the guards and the pools' conservation laws;
the oracles look on as the engine's observer. Nothing here decides a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from specdebug import async_probe
from specdebug.errors import SpecDebugError
from specdebug.harness.driver import Arrival, WorkloadDriver
from specdebug.harness.exceptions import violation_of
from specdebug.harness.oracle import Judge
from specdebug.harness.outcome import Violation
from specdebug.targets.embedded import EngineLike
from specdebug.targets.wire import Sink

IDLE_LIMIT = 64
"""Steps an engine with work may do nothing at all before it counts as hanging."""

COLD = "cold:"
"""Prefix of the ids of requests that are served again, cold."""


class Stopped(Exception):
    """The run cannot go on; why has been reported."""


class RunLoop:
    """One engine, one workload, one sink."""

    def __init__(
        self,
        engine: EngineLike,
        driver: WorkloadDriver,
        sink: Sink,
        judge: Judge,
        *,
        max_steps: int,
        check_pools: bool,
        make_sampling: Callable[..., Any],
        decode: Callable[[Sequence[int]], str],
        vocab_size: int,
    ) -> None:
        self.engine = engine
        self._driver = driver
        self._sink = sink
        self._judge = judge
        self._max_steps = max_steps
        self._check_pools = check_pools
        self._make_sampling = make_sampling
        self._decode = decode
        self._vocab_size = vocab_size
        self._step = 0
        self._idle = 0
        self._finished: dict[str, list[int]] = {}
        self.arrived: dict[str, Arrival] = {}

    def run(self) -> None:
        """Serve the whole workload. Raises Stopped when the engine fails or never comes to an end."""
        while True:
            due = self._driver.due(self._step, self._finished)
            for arrival in due.arrivals:
                self._arrive(arrival)
            for rid in due.aborts:
                self._call(self.engine.abort, rid)
                self._end(rid)
            if not self.engine.has_work and self._driver.exhausted:
                return
            self._one_step()

    def serve_cold(self, rid: str) -> list[int]:
        """Serve a request's prompt again, alone and with an empty cache; returns its accept lengths."""
        self._call(self.engine.flush_cache)
        again = COLD + rid
        self._add(again, self.arrived[rid])
        while self.engine.has_work:
            self._advance()
        return list(self.engine.requests[again].accept_lengths)

    def _arrive(self, arrival: Arrival) -> None:
        self.arrived[arrival.rid] = arrival
        self._sink.emit(
            "arrive", rid=arrival.rid, group=arrival.group, prompt_tokens=len(arrival.prompt_ids)
        )
        self._add(arrival.rid, arrival)

    def _add(self, rid: str, arrival: Arrival) -> None:
        sampling = self._make_sampling(**asdict(arrival.sampling))
        self._call(
            self.engine.add_request, rid, list(arrival.prompt_ids), sampling, speculative=arrival.speculative
        )

    def _call(self, function: Callable[..., object], *args: object, **options: object) -> None:
        """Ask something of the engine between steps. A request it rejects is the scenario's fault."""
        try:
            function(*args, **options)
        except Exception as error:
            if isinstance(error, SpecDebugError) and error.exit_code == 2:
                raise
            self.report(violation_of(error, self._step))
            raise Stopped from error

    def _one_step(self) -> None:
        step = self._step + 1
        report, seconds = self._advance()
        emitted = {rid: list(tokens) for rid, tokens in report.emitted.items()}
        self._sink.emit(
            "step",
            step=step,
            kind=report.kind,
            rids=list(report.rids),
            emitted=emitted,
            accept=dict(report.accept_lengths),
            cached=dict(report.cached),
            finished=list(report.finished),
            retracted=list(report.retracted),
            s=round(seconds, 6),
        )
        for rid, tokens in emitted.items():
            wrong = [token for token in tokens if not 0 <= token < self._vocab_size]
            if wrong:
                detail = f"{rid} was given token {wrong[0]}, vocabulary {self._vocab_size}"
                self.report(Violation("oob", "request.output_ids", step, detail))
        for rid in report.finished:
            self._end(rid)
        self._watch_progress(report)

    def _advance(self) -> tuple[Any, float]:
        """One engine step and the checks after it; what a step recorded before it failed is reported
        first."""
        step, judge = self._step + 1, self._judge  # the engine counts its steps from 1, and so do reports
        judge.step, judged = step, judge.seconds
        began = judge.clock()
        failure: Exception | None = None
        report = None
        try:
            report = self.engine.step()
        except Exception as error:
            failure = error
        seconds = judge.clock() - began - (judge.seconds - judged)
        self._inspect(step, pools=failure is None)
        if failure is not None or report is None:
            if failure is not None:
                self.report(violation_of(failure, step))
            raise Stopped from failure
        judge.after_step(
            [self.engine.requests[rid] for rid in report.rids if rid in self.engine.requests],
            {rid: list(tokens) for rid, tokens in report.emitted.items()},
        )
        self._step += 1
        if self._step > self._max_steps:
            self.report(Violation("hang", "", step, f"not done after {self._max_steps} steps"))
            raise Stopped
        return report, seconds

    def _inspect(self, step: int, *, pools: bool) -> None:
        for guard in self.engine.check_guards():
            site = f"{guard.buffer}->{guard.victim}"
            self.report(Violation("guard", site, step, str(guard)))
        for found in async_probe.drain():
            data = {"index": found.index, "value": found.value, "bound": found.bound}
            count = found.count or 1
            self.report(Violation(found.kind, found.site, step, found.message(), count, data))
        if pools and self._check_pools:
            for problem in self.engine.check_pools():
                law, _, detail = problem.partition(":")
                self.report(Violation("pools", law.strip(), step, detail.strip() or problem))

    def _watch_progress(self, report: Any) -> None:
        self._idle = self._idle + 1 if report.kind == "idle" and self.engine.has_work else 0
        if self._idle > IDLE_LIMIT:
            detail = f"the engine has work but did nothing for {IDLE_LIMIT} steps"
            self.report(Violation("hang", "", self._step, detail))
            raise Stopped

    def _end(self, rid: str) -> None:
        if rid in self._finished:
            return
        request = self.engine.requests[rid]
        self._finished[rid] = list(request.output_ids)
        reason = request.finish_reason or "abort"
        self._sink.emit("request", rid=rid, finish_reason=reason, text=self._decode(request.output_ids))

    def report(self, violation: Violation) -> None:
        """Pass a violation on."""
        self._sink.emit("violation", **asdict(violation))
