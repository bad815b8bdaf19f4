"""A replay's steps as a trace that Perfetto and chrome://tracing open: the JSON Trace Event format.

A process is an arm, a thread a phase of its engine; a target without steps has one, in which requests are served. The
engine's own time is all that is recorded, so steps stand one after another as if nothing lay between them. Besides a
slice for each step there are counters (accept length, batch size, tokens that came out) and instants (findings,
injections, requests that finished or were retracted).

Format: "Trace Event Format", Google, 2016; times are in microseconds.
"""

from collections.abc import Iterator, Sequence
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
        events += _arm_events(result, recording.of(result.run.key), pid)
    about: dict[str, Any] = {"specdebug": __version__, "scenario": replay.scenario.name}
    about |= {"path": str(replay.scenario.path), NOT_ENGINE_CODE: not_engine_lines(replay.results)}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _arm_events(result: ArmResult, steps: Sequence[EngineStep], pid: int) -> Iterator[Event]:
    """One arm's events under this process id: metadata, steps, injections, findings."""
    outcome = result.outcome
    names: dict[str, dict[int, str | int]] = {
        "process_name": {0: f"{result.run.shown}: {outcome.verdict}"},
        "process_sort_index": {0: pid},
    }
    names["thread_name"] = {**{tid: phase for phase, tid in PHASES.items()}, EVENTS: "events"}
    for what, by_thread in names.items():
        for tid, value in by_thread.items():
            key = "sort_index" if isinstance(value, int) else "name"
            yield {"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {key: value}}
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    now = 0.0
    for step in steps:
        starts[step.number], ends[step.number] = now, now + 1e6 * step.seconds
        yield from _step_events(step, now, pid)
        now = ends[step.number]
    # A step that never came to its end is in neither: what belongs to it, or to no step, stands at the end.
    for each in outcome.injections:
        args = {"step": each.step, "detail": str(each)}
        yield _instant(each.fault, "injection", starts.get(each.step, now), pid, args)
    for found in outcome.violations:
        args = {"step": found.step, "times": found.count, "detail": found.detail}
        at = now if found.step is None else ends.get(found.step, now)
        yield _instant(found.signature, "finding", at, pid, args)


def _step_events(step: EngineStep, at: float, pid: int) -> Iterator[Event]:
    accept = {rid: lengths[0] if len(lengths) == 1 else list(lengths) for rid, lengths in step.accept.items()}
    yield {
        "name": f"{step.kind} {step.number}",
        "cat": step.kind,
        "ph": "X",
        "ts": round(at, 3),
        "dur": round(1e6 * step.seconds, 3),
        "pid": pid,
        "tid": PHASES.get(step.kind, PHASES["served"]),
        "args": {"step": step.number, "requests": list(step.rids), "accept": accept},
    }
    counters: dict[str, float] = {"batch size": len(step.rids), "tokens out": step.emitted}
    if step.accept_mean is not None:
        counters["accept length"] = round(step.accept_mean, 4)
    for name, value in counters.items():
        yield {"name": name, "ph": "C", "ts": round(at, 3), "pid": pid, "tid": 0, "args": {name: value}}
    for what, rids in (("finished", step.finished), ("retracted", step.retracted)):
        for rid in rids:
            args = {"request": rid, "step": step.number}
            yield _instant(f"{rid} {what}", what, at + 1e6 * step.seconds, pid, args)


def _instant(name: str, category: str, at: float, pid: int, args: Event) -> Event:
    """``s``: drawn across all of the arm's threads."""
    plain = {"name": name, "cat": category, "ph": "i", "ts": round(at, 3), "pid": pid, "tid": EVENTS}
    return plain | {"args": args, "s": "p"}
