"""The trace, held to the Trace Event format."""

from __future__ import annotations

import json
from typing import Any

from specdebug.report.perfetto import EVENTS, PHASES, trace_of
from tests.report.samples import BAD, both, recorded


def events_of(steps: dict[str, tuple[int, int]]) -> list[dict[str, Any]]:
    document = json.loads(json.dumps(trace_of(both(), recorded(**steps))))
    assert document["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def test_every_event_has_what_the_format_requires() -> None:
    for event in events_of({"fixed": (40, 3), "reverted": (10, 2)}):
        assert isinstance(event["name"], str)
        assert event["ph"] in ("X", "C", "i", "M")
        assert event["ts"] >= 0
        assert event["pid"] in (1, 2)
        assert event["tid"] in (0, EVENTS, *PHASES.values())
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "i":
            assert event["s"] == "p"
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())


def test_a_slice_a_step_one_after_another_with_its_counters() -> None:
    recording = recorded(fixed=(40, 3))
    events = [event for event in events_of({"fixed": (40, 3)}) if event["pid"] == 1]
    slices = [event for event in events if event["ph"] == "X"]
    steps = recording.of("fixed")
    assert [one["name"] for one in slices] == [f"{step.kind} {step.number}" for step in steps]
    now = 0.0
    for one, step in zip(slices, steps, strict=True):
        assert abs(one["ts"] - now) < 0.01
        now += 1e6 * step.seconds
    counted = [event["args"]["batch size"] for event in events if event["name"] == "batch size"]
    assert counted == [len(step.rids) for step in steps]
    accept = [event["args"]["accept length"] for event in events if event["name"] == "accept length"]
    assert len(accept) == sum(bool(step.accept) for step in steps)
    ends = [event["args"]["request"] for event in events if event.get("cat") == "finished"]
    assert ends == [rid for step in steps for rid in step.finished]


def test_findings_and_injections_are_instants_at_their_steps() -> None:
    events = [event for event in events_of({"reverted": (10, 2)}) if event["pid"] == 2]
    slices = {event["args"]["step"]: event for event in events if event["ph"] == "X"}
    found = {event["name"]: event for event in events if event.get("cat") == "finding"}
    assert list(found) == [violation.signature for violation in BAD.violations]
    nine = slices[9]["ts"] + slices[9]["dur"]
    assert abs(found["nan@draft.logits"]["ts"] - nine) < 0.01
    last = slices[10]["ts"] + slices[10]["dur"]
    assert abs(found["hang"]["ts"] - last) < 0.01  # of no step
    assert abs(found["nan@draft.topk_p"]["ts"] - last) < 0.01  # of a step that never came to its end
    (injected,) = (event for event in events if event.get("cat") == "injection")
    assert (injected["name"], injected["ts"]) == ("kv_nan", slices[8]["ts"])
