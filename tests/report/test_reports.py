"""What results look like to a person, to a program and to a CI system."""

from __future__ import annotations

import dataclasses
import html
import io
import json
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from specdebug.campaign.loops.compare import compare
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Replay
from specdebug.campaign.loops.steplog import Recording
from specdebug.report import progress as progress_module
from specdebug.report.document import comparison_document, replay_document, to_json
from specdebug.report.github import plain, replay_summary
from specdebug.report.html.replay import replay_page
from specdebug.report.junit import junit_xml
from specdebug.report.progress import LiveProgress, PlainProgress, progress_on, progress_text
from specdebug.report.terminal import render_comparison, render_replay
from specdebug.scenario.grammar import Arm, Expectation, Scenario, TokenPrompt, WorkloadGroup
from specdebug.verdict.ledger import Ledger
from specdebug.verdict.outcome import Located, Metrics, Outcome, RequestResult, Tie, Violation
from tests.run.fakes import text_of

SCENARIO = Scenario(
    name="sample",
    workload=(WorkloadGroup("g0", TokenPrompt((1, 2))),),
    arms={"fixed": Arm("fixed"), "reverted": Arm("reverted")},
    expect={},
)
GOOD = Outcome(
    "pass",
    None,
    None,
    "",
    None,
    metrics=Metrics(accept_mean=2.31, accept_hit=2.1, accept_cold=2.31, cached_tokens=661, wall_s=1.0),
    requests=(RequestResult("g0.0", "g0", 2, 661, (4, 5), accept_lengths=(2, 3)),),
    trace_hash="t1",
)
BAD = Outcome(
    "fail",
    "guard@draft.kv_indices->[next]",
    "draft.kv_indices->[next]",
    "overran by 64 bytes",
    3,
    violations=(
        Violation("guard", "draft.kv_indices->[next]", 3, "overran by 64 bytes", 4),
        Violation("nan", "draft.logits", 4, "1 bad"),
    ),
    notes=("a note",),
    log_tail="colour \x1b[31m and \x00 bytes",
    requests=(RequestResult("g0.0", "g0", 2, 0, (4, 9), accept_lengths=(1,)),),
    trace_hash="t2",
)
LOST = Outcome("unknown", None, None, "nothing was generated", None, reasons=("nothing was generated",))


def result(arm: str, outcome: Outcome, expectation: Expectation | None = None) -> ArmResult:
    reverted: Any = (SimpleNamespace(pr=27338),)
    return ArmResult(ArmRun(arm, SCENARIO, arm, 0, toggles=reverted, expectation=expectation), outcome)


def answer(*results: ArmResult) -> Replay:
    return Replay(SCENARIO, results, 2.5)


def test_the_table_has_a_row_an_arm_and_the_evidence_follows() -> None:
    text = text_of(render_replay(answer(result("fixed", GOOD, Expectation()), result("reverted", BAD, Expectation()))))
    assert "2.31 (hit 2.10, cold 2.31)" in text
    assert "661" in text
    assert "no: pass" in text  # what was expected stands where it was not met
    assert "guard@draft.kv_indices->[next] at step 3, 4 in all  overran by 64 bytes" in text
    assert "then nan@draft.logits at step 4" in text
    assert "fixes reverted: 27338" in text
    assert text.rstrip().endswith("sample: 1 of 2 arms as expected (2.5 s)")


ON_GPU: dict[str, Any] = {
    "device": "cuda",
    "name": "NVIDIA H200",
    "dtype": "bfloat16",
    "backend": "fa3",
    "executor": "Triton kernels",
}


def test_near_ties_and_the_device_are_told() -> None:
    ties = tuple(Tie(position, 0.0078 * (position + 1), 0.25, 40, 41) for position in range(8))
    tied = dataclasses.replace(GOOD, stack=ON_GPU, requests=(dataclasses.replace(GOOD.requests[0], ties=ties),))
    text = text_of(render_replay(answer(result("fixed", tied, Expectation()))))
    assert "on cuda (NVIDIA H200), bfloat16, fa3 by Triton kernels" in text
    folded = " ".join(text.split())
    assert "8 near-ties went the other way than the reference (margin in logits, of what is allowed)" in folded
    assert "g0.0 output 7: 40 for 41, 0.062 of 0.25; g0.0 output 6:" in folded  # the widest first
    assert "2 more (see --json)" in folded
    tied_answer = answer(result("fixed", tied, Expectation()))
    assert "g0.0 output 7: 40 for 41, 0.062 of 0.25" in junit_xml([tied_answer])
    (said,) = replay_document(tied_answer)["arms"]
    assert [tie["margin"] for tie in said["requests"][0]["ties"]] == [tie.margin for tie in ties]  # all of them
    other = dataclasses.replace(GOOD, stack={**ON_GPU, "backend": "flashinfer"})
    text = text_of(render_replay(answer(result("fixed", tied), result("reverted", other))))
    assert "fixed: on cuda (NVIDIA H200), bfloat16, fa3 by" in text
    assert "reverted: on cuda (NVIDIA H200), bfloat16, flashinfer by" in text
    on_cpu = dataclasses.replace(GOOD, stack={**ON_GPU, "device": "cpu", "name": "CPU"})
    assert "on cpu" not in text_of(render_replay(answer(result("fixed", on_cpu))))


def test_a_plain_verdict_is_the_closing_line() -> None:
    text = text_of(render_replay(answer(result("fixed", BAD))))
    assert text.rstrip().endswith("sample: fixed fail guard@draft.kv_indices->[next] (2.5 s)")
    assert "nothing was generated" in text_of(render_replay(answer(result("fixed", LOST))))


def test_no_line_of_a_redirected_table_is_folded() -> None:
    text = text_of(render_replay(answer(result("fixed", BAD, Expectation()))))
    (row,) = [line for line in text.splitlines() if line.startswith("│ fixed  ")]
    assert "fail     guard@draft.kv_indices->[next]  no: pass" in row


def test_the_worker_s_last_words_are_shown_only_when_it_died() -> None:
    died = Outcome("fail", "hang", None, "", 2, violations=(Violation("hang", "", 2, "killed"),), log_tail="in step\n")
    assert "last words" in text_of(render_replay(answer(result("fixed", died))))
    assert "last words" not in text_of(render_replay(answer(result("fixed", BAD))))
    found = Violation("nan", "draft.logits", 2, "gone", data={"device": "cuda", "lost": True})
    gone = Outcome("fail", "nan@draft.logits", None, "", 2, violations=(found,), log_tail="Assertion\n")
    assert "last words" in text_of(render_replay(answer(result("fixed", gone))))


def test_a_comparison_shows_where_the_texts_part() -> None:
    comparison = compare(("one", "two"), (GOOD, BAD), lambda ids: f"<{'/'.join(map(str, ids))}>")
    text = text_of(render_comparison("sample", comparison))
    assert "token 1: '<5>' | '<9>'" in text
    assert "the arms differ: 1 of 1 requests have other outputs" in text
    code = text_of(render_comparison("s", compare(("one", "two"), (GOOD, BAD), lambda ids: f"[x:key:{ids[0]}]")))
    assert "token 1: '[x:key:5]' | '[x:key:9]'" in code  # as it is: no markup, no emoji
    same = compare(("one", "two"), (GOOD, GOOD), str)
    assert "outputs and verdicts agree; every step was the same" in text_of(render_comparison("s", same))


def test_the_documents_are_strict_json() -> None:
    two = answer(result("fixed", GOOD, Expectation()), result("reverted", BAD))
    document = json.loads(to_json(replay_document(two)))
    assert document["exit_code"] == 1
    first, second = document["arms"]
    assert first["engine"] == {
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "flashinfer",
        "overridden": [],
    }
    assert (first["met"], first["expected"]) == (True, {"verdict": "pass"})
    assert (second["met"], second["expected"], second["reverted"]) == (None, None, [27338])
    assert second["violations"][1]["signature"] == "nan@draft.logits"
    compared = json.loads(to_json(comparison_document(compare(("a", "b"), (GOOD, BAD), str))))
    assert (compared["agree"], compared["exit_code"]) == (False, 1)


def cases(*results: ArmResult) -> tuple[ET.Element, list[ET.Element]]:
    root = ET.fromstring(junit_xml([answer(*results)]))
    return root, list(root.iter("testcase"))


@pytest.mark.parametrize(
    ("outcome", "expectation", "mark"),
    [
        (GOOD, Expectation(), None),
        (GOOD, None, None),
        (BAD, Expectation("fail", ("guard@*",)), None),
        (BAD, Expectation(), "failure"),
        (BAD, None, "failure"),
        (GOOD, Expectation("fail"), "failure"),
        (LOST, Expectation(), "skipped"),
        (LOST, None, "skipped"),
    ],
)
def test_junit_marks_what_was_not_as_expected(
    outcome: Outcome, expectation: Expectation | None, mark: str | None
) -> None:
    root, (case,) = cases(result("fixed", outcome, expectation))
    marks = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
    assert marks == ([mark] if mark else [])
    assert root.get("failures") == str(int(mark == "failure"))
    assert root.get("skipped") == str(int(mark == "skipped"))


def test_junit_counts_add_up_and_odd_characters_do_not_break_it() -> None:
    root, found = cases(result("fixed", GOOD, Expectation()), result("reverted", BAD, Expectation()))
    (suite,) = root
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("sample", "2", "1")
    assert len(found) == 2
    failure = found[1].find("failure")
    assert failure is not None
    assert failure.get("type") == "guard@draft.kv_indices->[next]"
    assert "nan@draft.logits (step 4, 1 in all): 1 bad" in (failure.text or "")
    assert "�" in (found[1].findtext("system-err") or "")


def test_plain_progress_says_when_an_arm_ends_and_survives_a_closed_stream() -> None:
    stream = io.StringIO()
    with PlainProgress(stream) as progress:
        run = ArmRun("fixed", SCENARIO, "fixed", 0)
        progress.arm_started(run)
        progress.arm_moved(run, Ledger())
        progress.arm_ended(result("fixed", BAD))
    assert stream.getvalue() == "fixed: fail guard@draft.kv_indices->[next], 0.0 s\n"

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    PlainProgress(Gone()).arm_ended(result("fixed", GOOD))


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_plain_progress_shows_what_takes_long_while_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "time", clock := Clock())
    stream, ledger, run = io.StringIO(), Ledger(), ArmRun("fixed", SCENARIO, "fixed", 0)

    def after(seconds: float, text: str | None = None) -> list[str]:
        clock.now += seconds
        if text is not None:
            ledger.fold({"event": "progress", "text": text})
            progress.arm_moved(run, ledger)
        progress.waiting()
        said = stream.getvalue().splitlines()
        stream.seek(0)
        stream.truncate()
        return said

    progress = PlainProgress(stream)
    progress.arm_started(run)
    assert after(1, "compiling a") == []
    assert after(1, "compiling b") == []
    assert after(1.5) == []
    assert after(1) == ["fixed: start, compiling b, 2 s"]
    assert after(1) == []
    assert after(5) == ["fixed: start, compiling b, 8 s"]
    assert after(1, "") == []
    assert after(60) == []


def test_a_live_row_counts_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "time", clock := Clock())
    progress, ledger, run = LiveProgress(io.StringIO()), Ledger(), ArmRun("fixed", SCENARIO, "fixed", 0)
    progress.arm_started(run)
    ledger.fold({"event": "progress", "text": "compiling flashinfer decode"})
    progress.arm_moved(run, ledger)
    clock.now += 7
    assert "start, compiling flashinfer decode, 7 s" in text_of(progress._draw())
    ledger.fold({"event": "stage", "name": "run"})
    progress.arm_moved(run, ledger)
    assert "compiling" not in text_of(progress._draw())


def test_a_terminal_gets_a_live_display() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with progress_on(stream) as progress:
        run = ArmRun("fixed", SCENARIO, "fixed", 0)
        progress.arm_started(run)
        ledger = Ledger()
        ledger.fold({"event": "setup", "probes_enabled": 1, "requests": 3})
        progress.arm_moved(run, ledger)
        progress.arm_ended(result("fixed", BAD))
    assert "fixed" in stream.getvalue()


def test_progress_in_words() -> None:
    ledger = Ledger()
    assert progress_text(ledger) == "start"
    ledger.fold({"event": "stage", "name": "run"})
    ledger.fold({"event": "setup", "probes_enabled": 1, "requests": 3})
    ledger.fold({"event": "violation", "kind": "nan", "site": "x", "step": 1, "detail": ""})
    assert progress_text(ledger) == "run, step 0, 0 of 3 requests, found nan@x"


def test_where_a_failure_began_is_told_everywhere() -> None:
    wrong = Outcome("fail", "mismatch@request", "request", "got 4", 9, (Violation("mismatch", "request", 9, "got 4"),))
    place = Located(3, "g0.1", "kv_pool.write.k", "float32, 6 rows", "mismatch@request", "its twin", "verify")
    told = answer(result("reverted", wrong.began_at(place), Expectation()))
    began = "began at verify.kv_pool.write.k, step 3, request g0.1: float32, 6 rows; beside its twin"
    text = text_of(render_replay(told))
    (row,) = [line for line in text.splitlines() if line.startswith("│ reverted  ")]
    assert "mismatch@verify.kv_pool.write.k" in row
    assert text.index(began) < text.index("mismatch@request at step 9  got 4")
    assert began in junit_xml([told])
    assert html.escape(began) in replay_page(told, Recording(), "specdebug replay x")
    assert plain(began) in replay_summary(told)
    (data,) = replay_document(told)["arms"]
    assert (data["signature"], data["located"]["from"]) == ("mismatch@verify.kv_pool.write.k", "mismatch@request")
