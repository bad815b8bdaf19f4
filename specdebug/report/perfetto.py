"""A replay's steps as a trace that Perfetto and chrome://tracing open: the JSON Trace Event format.

A process is an arm, a thread a phase of its engine; a target without steps has one, in which requests are served. The
engine's own time is all that is recorded, so steps stand one after another as if nothing lay between them. Besides a
slice for each step there are counters (accept length, batch size, tokens that came out) and instants (findings,
injections, requests that finished or were retracted).

Format: "Trace Event Format", Google, 2016; times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specdebug import __version__
from specdebug.campaign.loops.replay import ArmResult, Replay
from specdebug.campaign.loops.steplog import EngineStep, Recording
from specdebug.report.replay import not_engine_lines
from specdebug.report.words import NOT_ENGINE_CODE

PHASES = {"prefill": 1, "decode": 2, "idle": 3, "served": 4}
"""Threads; findings and ends of requests lie on one of their own."""

EVENTS = 5

Event = dict[str, Any]


def trace_of(replay: Replay, recording: Recording) -> dict[str, Any]:
    """The trace of all arms."""
    events: list[Event] = []
    for pid, result in enumerate(replay.results, 1):
        events += arm_events(result, recording.of(result.run.key), pid)
    about: dict[str, Any] = {"specdebug": __version__, "scenario": replay.scenario.name}
    about |= {"path": str(replay.scenario.path), NOT_ENGINE_CODE: not_engine_lines(replay.results)}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def arm_events(result: ArmResult, steps: Sequence[EngineStep], pid: int) -> list[Event]:
    """One arm's events under this process id: metadata, steps, injections, findings."""
    name = f"{result.run.arm}: {result.outcome.verdict}"
    events = [_named("process_name", name, pid, 0), _named("process_sort_index", pid, pid, 0)]
    events += [_named("thread_name", phase, pid, tid) for phase, tid in PHASES.items()]
    events.append(_named("thread_name", "events", pid, EVENTS))
    starts: dict[int, float] = {}
    now = 0.0
    for step in steps:
        starts[step.number] = now
        events += _step_events(step, now, pid)
        now += 1e6 * step.seconds
    ends = {step.number: starts[step.number] + 1e6 * step.seconds for step in steps}
    # A step that never came to its end is in neither: what belongs to it, or to no step, stands at the end.
    outcome = result.outcome
    for each in outcome.injections:
        args = {"step": each.step, "detail": str(each)}
        events.append(_instant(each.fault, "injection", starts.get(each.step, now), pid, args))
    for found in outcome.violations:
        args = {"step": found.step, "times": found.count, "detail": found.detail}
        at = now if found.step is None else ends.get(found.step, now)
        events.append(_instant(found.signature, "finding", at, pid, args))
    return events


def _step_events(step: EngineStep, at: float, pid: int) -> Iterator[Event]:
    yield {
        "name": f"{step.kind} {step.number}",
        "cat": step.kind,
        "ph": "X",
        "ts": _time(at),
        "dur": _time(1e6 * step.seconds),
        "pid": pid,
        "tid": PHASES.get(step.kind, PHASES["served"]),
        "args": {"step": step.number, "requests": list(step.rids), "accept": _plain(step.accept)},
    }
    yield _counter("batch size", len(step.rids), at, pid)
    yield _counter("tokens out", step.emitted, at, pid)
    if step.accept_mean is not None:
        yield _counter("accept length", round(step.accept_mean, 4), at, pid)
    end = at + 1e6 * step.seconds
    for what, rids in (("finished", step.finished), ("retracted", step.retracted)):
        for rid in rids:
            yield _instant(f"{rid} {what}", what, end, pid, {"request": rid, "step": step.number})


def _plain(accept: Mapping[str, Sequence[int]]) -> dict[str, int | list[int]]:
    """A single verify of a request as its number."""
    return {rid: lengths[0] if len(lengths) == 1 else list(lengths) for rid, lengths in accept.items()}


def _instant(name: str, category: str, at: float, pid: int, args: Event) -> Event:
    scope = {"s": "p"}  # drawn across all of the arm's threads
    return {"name": name, "cat": category, "ph": "i", "ts": _time(at), "pid": pid, "tid": EVENTS, "args": args} | scope


def _counter(name: str, value: float, at: float, pid: int) -> Event:
    return {"name": name, "ph": "C", "ts": _time(at), "pid": pid, "tid": 0, "args": {name: value}}


def _named(what: str, value: str | int, pid: int, tid: int) -> Event:
    key = "sort_index" if isinstance(value, int) else "name"
    return {"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {key: value}}


def _time(microseconds: float) -> float:
    return round(microseconds, 3)
