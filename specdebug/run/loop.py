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
from specdebug.faults.injector import Injector
from specdebug.run.driver import Arrival, WorkloadDriver
from specdebug.run.exceptions import violation_of
from specdebug.run.oracle import Judge
from specdebug.targets.embedded import EngineLike
from specdebug.verdict.device_errors import device_lost
from specdebug.verdict.outcome import Violation
from specdebug.workers.machine_failure import machine_failure
from specdebug.workers.wire import Sink

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
        synchronize: Callable[[], None] | None = None,
        injector: Injector | None = None,
    ) -> None:
        """``synchronize`` waits for the engine's device; None when there is nothing to wait for. ``injector`` does
        damage around each step; None: nobody does."""
        self.engine = engine
        self._driver = driver
        self._sink = sink
        self._judge = judge
        self._max_steps = max_steps
        self._check_pools = check_pools
        self._make_sampling = make_sampling
        self._decode = decode
        self._vocab_size = vocab_size
        self._synchronize = synchronize
        self._injector = injector
        self._step = 0
        self._idle = 0
        self._finished: dict[str, list[int]] = {}
        self.arrived: dict[str, Arrival] = {}
        self.lost = False
        """Whether a failure has cost this process its device: nothing on it can be used again."""

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

    def settle(self) -> None:
        """Wait for what the device still has to do, and look once more: the last steps' findings and failures may
        not have reached the host. Raises Stopped when there is a failure among them."""
        if self._synchronize is None:
            return
        failure: Exception | None = None
        try:
            self._synchronize()
        except Exception as error:
            failure = error
        if self._inspect(self._step, failure, wait=True) is not None:
            raise Stopped from failure

    def _arrive(self, arrival: Arrival) -> None:
        self.arrived[arrival.rid] = arrival
        self._sink.emit("arrive", rid=arrival.rid, group=arrival.group, prompt_tokens=len(arrival.prompt_ids))
        self._add(arrival.rid, arrival)

    def _add(self, rid: str, arrival: Arrival) -> None:
        sampling = self._make_sampling(**asdict(arrival.sampling))
        self._call(self.engine.add_request, rid, list(arrival.prompt_ids), sampling, speculative=arrival.speculative)

    def _call(self, function: Callable[..., object], *args: object, **options: object) -> None:
        """Ask something of the engine between steps. A request it rejects is the scenario's fault."""
        try:
            function(*args, **options)
        except Exception as error:
            if _cannot_be_served(error):
                raise
            self._failed(error, self._step)
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
        if self._injector is not None:
            self._injector.before_step(step)
        began = judge.clock()
        failure: Exception | None = None
        report = None
        try:
            report = self.engine.step()
        except Exception as error:
            if _cannot_be_served(error):
                raise
            failure = error
        seconds = judge.clock() - began - (judge.seconds - judged)
        if self._injector is not None and failure is None:
            self._injector.after_step()
        failure = self._inspect(step, failure, pools=failure is None and self._check_pools)
        if failure is not None or report is None:
            raise Stopped from failure
        judge.after_step(
            [self.engine.requests[rid] for rid in report.rids if rid in self.engine.requests],
            {rid: list(tokens) for rid, tokens in report.emitted.items()},
        )
        judge.look(self.engine, [self.engine.requests[rid] for rid in report.rids if rid in self.engine.requests])
        self._step += 1
        if self._step > self._max_steps:
            self.report(Violation("hang", "", step, f"not done after {self._max_steps} steps"))
            raise Stopped
        return report, seconds

    def _inspect(
        self, step: int, failure: Exception | None, *, pools: bool = False, wait: bool = False
    ) -> Exception | None:
        """Report what a step left behind, and its failure if it had one; returns what the run ends of, if anything.

        Probes' findings are taken as they arrive, or, when this is the last look (``wait``), waited for. On a GPU a
        failed kernel may be noticed only here. Once the device is lost it cannot be asked any more: what had reached
        the host by then comes first, for it tells what the device died of, and whatever else fails is its consequence.
        """
        read_probes = self._drain_probes if failure is not None or wait else self._poll_probes
        checks = [self._read_guards, read_probes, *([self._read_pools] if pools else [])]
        for check in checks if failure is None or not device_lost(failure) else ():
            try:
                check(step)
            except Exception as error:
                failure = failure or error
                if device_lost(error):
                    break
        if failure is not None and device_lost(failure) and not self.lost:
            self._salvage(step)
        if failure is not None and not self.lost:
            self._failed(failure, step)
        return failure

    def _failed(self, error: Exception, step: int) -> None:
        machine = machine_failure(error)
        if machine is not None:
            self.lost = machine.cause == "device"
            self._sink.emit("machine", cause=machine.cause, line=machine.line)
            return
        self.lost = device_lost(error)
        self.report(violation_of(error, step))

    def _salvage(self, step: int) -> None:
        self._report_guards(self.engine.damage_seen(), step)
        self._report_probes(async_probe.salvage(), step)

    def _read_guards(self, step: int) -> None:
        self._report_guards(self.engine.check_guards(), step)

    def _report_guards(self, damage: Sequence[Any], step: int) -> None:
        for guard in damage:
            self.report(Violation("guard", f"{guard.buffer}->{guard.victim}", step, str(guard)))

    def _poll_probes(self, step: int) -> None:
        self._report_probes(async_probe.poll(), step)

    def _drain_probes(self, step: int) -> None:
        self._report_probes(async_probe.drain(), step)

    def _report_probes(self, findings: Sequence[async_probe.ProbeFinding], step: int) -> None:
        for found in findings:
            data = {"index": found.index, "value": found.value, "bound": found.bound}
            # A device's findings may arrive some steps after the one that they were made in.
            made_in, count = found.step or step, found.count or 1
            self.report(Violation(found.kind, found.site, made_in, found.message(), count, data))

    def _read_pools(self, step: int) -> None:
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


def _cannot_be_served(error: Exception) -> bool:
    """Whether what was asked for is at fault (a rejected request, a library that is missing), not the engine."""
    return isinstance(error, SpecDebugError) and error.exit_code == 2
