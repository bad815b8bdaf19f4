"""The plots of bisect and flake, taken apart."""

import itertools
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.campaign.loops.fault_matrix import Case, CaseCheck, FaultMatrix
from specdebug.campaign.loops.steplog import EngineStep
from specdebug.faults.catalogue import CLASSES
from specdebug.report.html.arena import arena_row
from specdebug.report.html.heatmap import CHARACTER, heat_map
from specdebug.report.html.stages import stage_row
from specdebug.report.html.steps import spans
from specdebug.report.html.svg import drawing, text, ticks
from specdebug.report.html.tree import tree_plot
from specdebug.report.html.trials import history, rate_plot, trial_grid
from specdebug.report.perfetto import EVENTS, PHASES, trace_of
from specdebug.search.intervals import anytime_interval
from specdebug.verdict.outcome import Violation
from tests.campaign.loops.test_fault_matrix import LATE, NAN, run_of
from tests.report.samples import BAD, both, chooser, outcome, recorded, searched, step


def test_the_history_ends_where_the_search_did_and_says_what_each_trial_was(tmp_path: Path) -> None:
    findings, _, journal = searched(tmp_path)
    with journal:
        trials = [journal.trials[number] for number in range(findings.standing.trials)]
    past = history(trials, chooser, None)
    assert findings.answer is not None
    assert [counted for counted, _ in past.looks] == list(range(len(trials) + 1))  # few enough for a look at each
    ended = dict(past.looks[-1][1])
    for culprits, probability in findings.standing.posterior:
        assert ended[culprits] == pytest.approx(probability)
    assert len(past.verdicts) == len(trials)
    for (trial, result), verdict in zip(trials, past.verdicts, strict=True):
        assert (verdict == "untestable") == (trial.number % 11 == 7) == (result.outcome == "untestable")
        assert (verdict == "other") == (result.signature == "exit:9")


def test_the_grid_fills_what_a_trial_reverted(tmp_path: Path) -> None:
    _, subject, journal = searched(tmp_path)
    with journal:
        trial = journal.trials[8][0]
    root = ET.fromstring(trial_grid([(trial, "fail")], subject.names))
    cells = [one.get("class") for one in root.iter("rect")]
    assert cells == ["trial fail" if one in trial.reverted else "cell none" for one in subject.names]


def test_the_first_wrong_stage_is_marked_and_arrows_lead_to_the_later_ones() -> None:
    seen = (Violation("nan", "draft.logits", 9), Violation("nan", "verify.logits", 9), Violation("pools", "", 10))
    row = stage_row(outcome("fail", 1, violations=seen))
    assert row is not None
    classes = [one.get("class") for one in ET.fromstring(row).iter("rect")]
    clean, later = "stage clean", "stage later"
    assert classes == [clean, "stage first", later, clean, clean, later]
    assert row.count("leads-to") == 2
    assert stage_row(outcome("fail", 1, violations=(Violation("hang"),))) is None


def test_an_arena_marks_each_overrun_with_its_bytes_and_rows() -> None:
    buffers = [[f"b{n}", 100 * n, 100 * n + 60, 20] for n in range(9)]
    held = {"buffers": buffers, "size": 900}
    seen = (
        Violation("guard", "b2->b3", 2, "b2 overran", data={"arena": held | {"reached": [260, 290]}}),
        Violation("guard", "b8->end of arena", 2, "b8 overran", data={"arena": held | {"reached": [860, 870]}}),
        Violation(
            "illegal-address",
            "k.b2",
            2,
            "left",
            data={"arena": held | {"buffers": buffers[2:3], "reached": [300, 960]}},
        ),
        Violation("guard", "c->d", 3, "elsewhere", data={"arena": {"buffers": [], "size": 7, "reached": [1, 2]}}),
    )
    drawn = arena_row(outcome("fail", 1, violations=seen))
    assert drawn is not None
    root = ET.fromstring(drawn)
    assert root.get("aria-label") == "b2 overran; b8 overran; left"
    boxes, marks = (
        [one for one in root.iter("rect") if one.get("class") == kind] for kind in ("stage clean", "overrun")
    )
    assert len(boxes) == 6
    assert [one.get("data-tip") for one in marks] == ["b2 overran", "left"]  # the last buffer is not drawn
    after = float(boxes[1].get("x", 0)) + float(boxes[1].get("width", 0))
    assert float(marks[0].get("x", 0)) == pytest.approx(after)
    words = [one.text for one in root.iter("text")]
    assert {"30 B", "1.5 rows", "1 buffer before", "2 more buffers"} <= set(words)
    assert arena_row(outcome("fail", 1, violations=(Violation("hang"),))) is None


def test_a_tree_has_the_accepted_path_in_bold_also_far_behind() -> None:
    parents = [-1, *([0] * 39), 20]
    tree = {"rid": "g.0", "tokens": list(range(100, 141)), "parents": parents, "accepted": [0, 20, 40]}
    seen = (Violation("nan", "verify.logits", 9), Violation("oob", "accept.x", 9, data={"tree": tree}))
    drawn = tree_plot(outcome("fail", 1, violations=seen))
    assert drawn is not None
    root = ET.fromstring(drawn)
    assert root.get("aria-label") == "request g.0, step 9: 3 of 41 nodes accepted; 25 drawn; tokens 100, 120, 140"
    assert [one.text for one in root.iter("text") if one.get("class") == "name accepted"] == ["100", "120", "140"]
    assert sum(one.get("class") == "branch accepted" for one in root.iter("polyline")) == 2
    places = {(one.get("x"), one.get("y")) for one in root.iter("rect")}
    assert len(places) == 25
    late = (Violation("nan", "verify.logits", 9), Violation("oob", "accept.x", 10, data={"tree": tree}))
    assert tree_plot(outcome("fail", 1, violations=late)) is None


def test_the_running_rate_is_drawn_with_its_confidence_sequence() -> None:
    shown = [run % 4 == 0 for run in range(1, 81)]
    plot = rate_plot(shown, 0.95, claimed=(0.4,))
    assert plot is not None
    root = ET.fromstring(plot)
    end = anytime_interval(20, 80, 0.95)
    assert root.get("aria-label") == (
        f"Failure rate over 80 runs: in the end 25.00%, 0.95 interval {end.low:.2%} to {end.high:.2%}"
    )
    tips = [one.get("data-tip") or "" for one in root.iter("rect") if one.get("class") == "hit"]
    assert tips[3].startswith("1 of 4 failed: 25.00%\n")
    assert len(tips) == 80
    assert sum(one.get("class") == "failure" for one in root.iter("line")) == 20
    assert sum(one.get("class") == "claimed" for one in root.iter("line")) == 1
    low, high = anytime_interval(1, 4, 0.95).low, anytime_interval(1, 4, 0.95).high
    assert tips[3].endswith(f"between {low:.2%} and {high:.2%}")
    assert rate_plot([], 0.95) is None


LENGTHS = st.lists(st.lists(st.integers(1, 6), max_size=4), min_size=1, max_size=300)


@given(LENGTHS, st.integers(1, 40))
def test_spans_lose_no_step_and_keep_the_sums(lengths: list[list[int]], most: int) -> None:
    steps = [
        EngineStep.of(step(n, accept={f"r{i}": length for i, length in enumerate(those)}))
        for n, those in enumerate(lengths, 1)
    ]
    drawn = spans(steps, most)
    assert len(drawn) <= most
    assert sum(span.kinds.total() for span in drawn) == len(steps)
    assert sum(span.emitted for span in drawn) == 2 * len(steps)
    assert (drawn[0].first, drawn[-1].last) == (1, len(steps))
    for span in drawn:
        within = [length for those in lengths[span.first - 1 : span.last] for length in those]
        assert span.accept == (sum(within) / len(within) if within else None)
        if span.accept is not None:
            assert span.accept_low <= span.accept + 1e-9
            assert span.accept <= span.accept_high + 1e-9


FINITE = st.floats(-1e9, 1e9, allow_nan=False)


@given(low=FINITE, span=st.floats(1e-6, 1e9), about=st.integers(2, 12))
def test_ticks_are_inside_evenly_spaced_and_about_as_many_as_asked(low: float, span: float, about: int) -> None:
    high = low + span
    if high - low < 1e-9 * max(abs(low), abs(high)):
        return  # nothing lies between them that a float can tell apart
    found = ticks(low, high, about)
    slack = 1e-6 * span
    assert all(low - slack <= value <= high + slack for value in found)
    assert 2 <= len(found) <= max(about + 1, 5)
    apart = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert all(gap == pytest.approx(apart[0], rel=1e-3, abs=1e-6) for gap in apart)


def test_ticks_are_round() -> None:
    assert ticks(0, 5.5, 5) == [0, 2, 4]
    assert ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(3, 3) == [3]


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])))
def test_whatever_is_written_is_text(words: str) -> None:
    drawn = drawing(10, words, text(1, 2, words, data_tip=words))
    root = ET.fromstring(drawn)
    assert root.get("aria-label") == words
    assert root.get("role") == "img"
    (label,) = root
    assert (label.text or "", label.get("data-tip")) == (words, words)


def test_the_heat_map_has_a_cell_for_each_pair_that_met_and_one_for_any() -> None:
    both, late = run_of("fail", NAN, LATE), run_of("fail", Violation("mismatch", "draft_kv", 6))
    rows = {
        Case(CLASSES["nan_logits"]): (both, run_of("fail", Violation("nan", "a.b", 6)), run_of("pass", step=None)),
        Case(CLASSES["nan_kv_in_use"], "<site>"): (run_of("pass"), run_of("fail", LATE), late),
        Case(CLASSES["inf_logits"]): (run_of("pass", step=None),),
        Case(CLASSES["nan_hidden_states"]): (),
    }
    drawn = heat_map(FaultMatrix(tuple(CaseCheck(case, runs) for case, runs in rows.items()), ()))
    assert drawn is not None
    root = ET.fromstring(drawn)
    assert (root.get("aria-label") or "").endswith(
        "3 classes of faults, 2 detectors; 4 of 5 effective injections were caught"
    )
    tips = [group.get("data-tip") or "" for group in root.iter("g")]
    assert tips == [
        "nan_logits by any: 2 of 2\nafter 0.5 steps in the mean, 1 at most",
        "nan_logits by mismatch@draft_kv: 1 of 2\nafter 4 steps in the mean, 4 at most",
        "nan_logits by nan@a.b: 2 of 2\nafter 0.5 steps in the mean, 1 at most",
        "nan_kv_in_use at <site> by any: 2 of 3\nafter 2.5 steps in the mean, 4 at most",
        "nan_kv_in_use at <site> by mismatch@draft_kv: 2 of 3\nafter 2.5 steps in the mean, 4 at most",
        "inf_logits by any: no effective injection",
    ]
    names = [each for each in root.iter("text") if each.get("text-anchor") == "end"]
    assert min(float(each.get("x") or 0) - CHARACTER * len(each.text or "") for each in names) >= 0
    assert heat_map(FaultMatrix((), ())) is None


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
    for one, ran in zip(slices, steps, strict=True):
        assert abs(one["ts"] - now) < 0.01
        now += 1e6 * ran.seconds
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
