"""Drive a session through a workload, step by step, and report everything it does, inside a worker.

:class:`WorkloadDriver` says when each request is due, given how the run went. Nothing here decides a verdict.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any

from specdebug.base.errors import SpecDebugError
from specdebug.events import Aborting, AllServed, CacheFlushed, Queued, Stepped
from specdebug.run.judge import Judge
from specdebug.run.session_run import beyond_the_machine, violation_of
from specdebug.scenario.workload import Arrival, Workload, WorkloadRequest
from specdebug.targets.base import Session
from specdebug.targets.requests import RequestView
from specdebug.verdict.deaths import device_lost
from specdebug.verdict.outcome import EXIT_CODES, Violation
from specdebug.workers.machine_failure import machine_failure
from specdebug.workers.wire import Sink


@dataclass(frozen=True)
class Due:
    """The requests to add before a step, in order, then those to abort."""

    arrivals: tuple[Arrival, ...]
    aborts: tuple[str, ...]


class WorkloadDriver:
    """Walks a workload. A request it has aborted counts as finished from the next call on."""

    def __init__(self, workload: Workload) -> None:
        self._after = workload.after
        self._waiting = {request.rid: request for request in workload.requests}
        self._unfinished: dict[str, set[str]] = {}
        for request in workload.requests:
            self._unfinished.setdefault(request.group, set()).add(request.rid)
        self._started = {group: 0 for group in self._unfinished if not self._after.get(group)}
        self._prompts: dict[str, tuple[int, ...]] = {}
        self._abort_at: dict[str, int] = {}
        self._step = 0

    @property
    def exhausted(self) -> bool:
        """Return True if nothing more will arrive or be aborted."""
        return not self._waiting and not self._abort_at

    def due(self, step: int, finished: Mapping[str, Sequence[int]]) -> Due:
        """The arrivals and aborts before ``step``; ``finished`` holds the output of every request finished so far."""
        if step < self._step:
            raise ValueError(f"step {step} comes after step {self._step}")
        self._step = step
        self._forget(finished)
        for group in self._unfinished:
            if group not in self._started and not any(self._unfinished[each] for each in self._after.get(group, ())):
                self._started[group] = step
        arriving = [request for request in self._waiting.values() if self._is_due(request, finished)]
        arrivals = tuple(self._arrive(request, finished) for request in arriving)
        aborts = tuple(rid for rid, at in self._abort_at.items() if at <= step)
        self._forget(aborts)
        return Due(arrivals, aborts)

    def _forget(self, ended: Collection[str]) -> None:
        for rids in self._unfinished.values():
            rids.difference_update(ended)
        self._abort_at = {rid: at for rid, at in self._abort_at.items() if rid not in ended}

    def _is_due(self, request: WorkloadRequest, finished: Mapping[str, Sequence[int]]) -> bool:
        if request.continues is not None:
            return request.continues in finished
        start = self._started.get(request.group)
        return start is not None and self._step >= start + request.delay

    def _arrive(self, request: WorkloadRequest, finished: Mapping[str, Sequence[int]]) -> Arrival:
        del self._waiting[request.rid]
        prompt = request.new_ids
        if request.continues is not None:
            prompt = self._prompts.pop(request.continues) + tuple(finished[request.continues]) + prompt
        self._prompts[request.rid] = prompt
        if request.abort_after is not None:
            self._abort_at[request.rid] = self._step + request.abort_after
        return Arrival(request.rid, request.group, prompt, request.sampling, request.speculative, request.flush)


IDLE_LIMIT = 64  # steps an engine with work may do nothing at all before it counts as hanging

COLD = "cold:"  # prefix of the ids of requests that are served again, cold


class Stopped(Exception):
    """The run cannot go on; why has been reported."""


@dataclass(eq=False)
class RunLoop:
    """One session, one workload, one sink. ``logprobs``: those of each request are told at its end. ``set_back``: a
    request is set back once."""

    session: Session
    driver: WorkloadDriver
    sink: Sink
    judge: Judge
    _: KW_ONLY
    max_steps: int
    decode: Callable[[Sequence[int]], str]
    logprobs: bool = False
    set_back: bool = False

    def __post_init__(self) -> None:
        self._step = self._idle = 0
        self._finished: dict[str, list[int]] = {}
        self.arrived: dict[str, Arrival] = {}
        self.lost = False  # true once a failure has cost this process its device: nothing on it can be used again

    def run(self) -> None:
        """Serve the whole workload. Raises Stopped when the engine fails or never comes to an end.

        Where a session has no steps, a step's arrivals and aborts are due once as many requests have finished; with
        nothing under way, the next come at once.
        """
        with self.noticing_loss():
            self._serve()

    @contextmanager
    def noticing_loss(self) -> Iterator[None]:
        """Report a device that a look at the engine finds lost, as that of a failed step. Raises Stopped."""
        try:
            yield
        except Exception as error:
            if not device_lost(error):
                raise
            self._inspect(self.judge.bench.step, error)
            raise Stopped from error

    def last_words(self) -> None:
        """This process ends in the middle of a step: report what had reached the host. Asks the device for nothing."""
        self.judge.salvage(self._step + 1)

    def _serve(self) -> None:
        by_step, time = "steps" in self.session.shows, 0
        while True:
            time = self._step if by_step else max(time, len(self._finished))
            due = self.driver.due(time, self._finished)
            for arrival in due.arrivals:
                self._arrive(arrival)
            for rid in due.aborts:
                self._call(self.judge.on, Aborting(self.session.request(rid)))
                self._call(self.session.abort, rid)
                self._end(rid)
            if not self.session.has_work and self.driver.exhausted:
                self.judge.on(AllServed(tuple(self.arrived)))
                return
            if self.set_back and (rids := self.session.set_back()):
                self.set_back = False
                self.sink.emit("set_back", rids=list(rids))
            if by_step or self.session.has_work:
                self._one_step()
            else:
                time += 1

    def serve_cold(self, rid: str) -> RequestView:
        """Serve a request's prompt again, alone and with an empty cache; returns the request that did."""
        self._call(self.session.flush_cache)
        again = COLD + rid
        self._add(again, self.arrived[rid])
        while self.session.has_work:
            self._advance()
            self.sink.emit("alive")
        served = self.session.request(again)
        if served.cached_tokens:
            detail = f"{again} found {served.cached_tokens} tokens in a cache that had just been flushed"
            self.report(Violation("pools", "flush_cache", self._step, detail))
        self.sink.emit("cold", rid=rid, accept_lengths=list(served.accept_lengths))
        return served

    def settle(self) -> None:
        """Wait for what the device still has to do, and look once more: the last steps' findings and failures may
        not have reached the host. Raises Stopped when there is a failure among them."""
        failure: Exception | None = None
        try:
            if not self.session.settle():
                return
        except Exception as error:
            failure = error
        if self._inspect(self._step, failure, last=True) is not None:
            raise Stopped from failure

    def _arrive(self, arrival: Arrival) -> None:
        self.arrived[arrival.rid] = arrival
        if arrival.flush and "cache_flush" in self.session.shows:
            self._call(self.session.flush_cache)
            self.judge.on(CacheFlushed())
        self.sink.emit("arrive", rid=arrival.rid, group=arrival.group, prompt_tokens=len(arrival.prompt_ids))
        self._add(arrival.rid, arrival)
        self.judge.on(Queued(self.session.request(arrival.rid)))

    def _add(self, rid: str, arrival: Arrival) -> None:
        self._call(self.session.add, rid, arrival.prompt_ids, arrival.sampling, speculative=arrival.speculative)

    def _call(self, function: Callable[..., object], *args: object, **options: object) -> None:
        """Ask something of the engine between steps. A request it rejects is the scenario's fault."""
        try:
            function(*args, **options)
        except Exception as error:
            if _cannot_be_served(error):
                raise
            self._inspect(self._step, error)
            raise Stopped from error

    def _one_step(self) -> None:
        step = self._step + 1
        report, seconds = self._advance()
        emitted = {rid: list(tokens) for rid, tokens in report.emitted.items()}
        facts = {**vars(report), "step": step, "emitted": emitted, "s": round(seconds, 6)}
        facts["accept"] = facts.pop("accept_lengths")
        if "steps" not in self.session.shows:  # then the accept lengths of all verifies of the requests that ended
            ended = map(self.session.request, report.finished)
            facts["verifies"] = {request.rid: list(request.accept_lengths) for request in ended}
        self.sink.emit("step", **facts)
        for rid, tokens in emitted.items():
            wrong = [token for token in tokens if not 0 <= token < self.session.vocab_size]
            if wrong:
                detail = f"{rid} was given token {wrong[0]}, vocabulary {self.session.vocab_size}"
                self.report(Violation("oob", "request.output_ids", step, detail))
        for rid in report.finished:
            self._end(rid)
        self._idle = self._idle + 1 if report.kind == "idle" and self.session.has_work else 0
        if self._idle > IDLE_LIMIT:
            detail = f"the engine has work but did nothing for {IDLE_LIMIT} steps"
            self.report(Violation("hang", "", self._step, detail))
            raise Stopped

    def _advance(self) -> tuple[Stepped, float]:
        """One engine step and the checks after it; what a step recorded before it failed is reported first."""
        step, judge = self._step + 1, self.judge  # the engine counts its steps from 1, and so do reports
        judge.bench.step, judged = step, judge.seconds
        began = self.session.clock()
        failure: Exception | None = None
        report = None
        try:
            report = self.session.advance()
        except Exception as error:
            if _cannot_be_served(error):
                raise
            failure = error
        seconds = self.session.clock() - began - (judge.seconds - judged)
        failure = self._inspect(step, failure)
        if failure is not None or report is None:
            raise Stopped from failure
        judge.stepped(report)
        self._step += 1
        if self._step > self.max_steps:
            self.sink.emit("overrun", steps=self.max_steps)
            raise Stopped
        return report, seconds

    def _inspect(self, step: int, failure: Exception | None, *, last: bool = False) -> Exception | None:
        """Report what a step left behind, and its failure if it had one; returns what the run ends of, if anything."""
        if failure is None or not device_lost(failure):
            noticed = self.judge.inspect(step, failed=failure is not None, last=last)
            failure = failure or noticed
        if failure is not None and device_lost(failure) and not self.lost:
            self.judge.salvage(step)
        if failure is not None and not self.lost:
            self._failed(failure, step)
        return failure

    def _failed(self, error: Exception, step: int) -> None:
        machine = machine_failure(error)
        if machine is not None:
            self.lost = machine.cause == "device"
            self.sink.emit("machine", cause=machine.cause, line=machine.line)
            return
        unjudged = isinstance(error, SpecDebugError) and error.exit_code == EXIT_CODES["unknown"]
        if reason := str(error) if unjudged else beyond_the_machine(error):
            self.sink.emit("impossible", reason=reason, unavailable=True)
            return
        self.lost = device_lost(error)
        self.report(violation_of(error, step))

    def _end(self, rid: str) -> None:
        if rid in self._finished:
            return
        request = self.session.request(rid)
        self._finished[rid] = list(request.output_ids)
        reason = request.finish_reason or "abort"
        told: dict[str, Any] = {}
        if self.logprobs:
            tops = self.session.top_logprobs(rid) if self.arrived[rid].sampling.features.logprobs else ()
            told = {"logprobs": list(self.session.logprobs(rid)), "top_logprobs": [[*top.items()] for top in tops]}
        self.sink.emit("request", rid=rid, finish_reason=reason, text=self.decode(request.output_ids), **told)

    def note(self, text: str) -> None:
        """Tell a sentence on the run, whatever its verdict."""
        self.sink.emit("note", text=text)

    def report(self, violation: Violation) -> None:
        self.sink.emit("violation", **asdict(violation))


def _cannot_be_served(error: Exception) -> bool:
    """Return True if what was asked for is at fault (a rejected request, a library that is missing), not the engine."""
    return isinstance(error, SpecDebugError) and error.exit_code == 2
