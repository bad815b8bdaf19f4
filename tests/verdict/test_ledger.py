"""What the parent makes of a worker's events, finished or cut short."""

import json
from dataclasses import replace
from typing import Any

import pytest

from specdebug.verdict.deaths import innermost_frame
from specdebug.verdict.ledger import Ledger
from specdebug.verdict.outcome import Outcome
from specdebug.workers.job import WorkerEnd
from specdebug.workers.machine_failure import MachineFailure


def step(n: int, rid: str = "g0.0", tokens: tuple[int, ...] = (5,), **changed: Any) -> dict[str, Any]:
    return {
        "event": "step",
        "step": n,
        "kind": "decode",
        "rids": [rid],
        "emitted": {rid: list(tokens)},
        "accept": {rid: len(tokens)},
        "cached": {},
        "finished": [],
        "retracted": [],
        "s": 0.5,
        **changed,
    }


START: list[dict[str, Any]] = [
    {"event": "stage", "name": "revert"},
    {"event": "reverts", "hits": {"27338": {"27338#1": 0}}},
    {"event": "stage", "name": "run"},
    {"event": "setup", "probes_enabled": 1, "requests": 1},
    {"event": "arrive", "rid": "g0.0", "group": "g0", "prompt_tokens": 12},
]
FINISH: list[dict[str, Any]] = [
    {"event": "request", "rid": "g0.0", "finish_reason": "length", "text": "abc"},
    {"event": "coverage", "reached": {"draft.logits": 3}, "hits": {"27338": {"27338#1": 7}}},
    {"event": "done", "stages_s": {"run": 1.0}, "peak_rss_mb": 300.0},
]


def end(kind: Any = "done", status: int = 0, log: str = "") -> WorkerEnd:
    return WorkerEnd(kind, status, 2.5, 310.0, log)


def outcome_of(events: list[dict[str, Any]], how: WorkerEnd | None = None) -> Outcome:
    ledger = Ledger()
    for event in events:
        ledger.fold(event)
    return ledger.outcome(how or end())


@pytest.mark.parametrize(("stand_in", "verdict", "signature"), [(False, "fail", "nan@a"), (True, "unknown", None)])
def test_what_is_found_without_a_stand_in_is_not_judged(stand_in: bool, verdict: str, signature: str | None) -> None:
    """A look of ours that does not fit takes nothing from what others found."""
    found = {"event": "violation", "kind": "nan", "site": "a", "step": 1, "detail": ""}
    lost = {"event": "lost", "text": "specdebug cannot", "stand_in": stand_in}
    got = outcome_of([*START, step(1), found, lost, *FINISH])
    assert (got.verdict, got.signature, got.reasons) == (verdict, signature, ("specdebug cannot",))
    assert [each.signature for each in got.violations] == ["nan@a"]


def test_what_was_found_in_the_step_that_a_lost_device_ended_names_the_failure() -> None:
    asserted = "x/Index.cu:9: void gather(): block: [0,0,0], thread: [1,0,0] Assertion `index < size` failed.\n"
    died = end("signal", -6, asserted)
    alone = outcome_of([*START, step(1)], died)
    assert (alone.verdict, alone.signature, alone.where_step) == ("fail", "assert@Index.cu", 1)
    seen = {"event": "violation", "kind": "oob", "site": "draft.input_ids", "step": 2, "detail": "below 0"}
    outcome = outcome_of([*START, step(1), seen], died)
    assert (outcome.signature, outcome.where_step) == ("oob@draft.input_ids", 2)
    assert [found.signature for found in outcome.violations] == ["oob@draft.input_ids", "assert@Index.cu"]
    assert "then the device was lost: Index.cu: assertion `index < size` failed" in outcome.detail
    assert "ended by SIGABRT in stage run" in outcome.detail


def test_a_finished_run() -> None:
    outcome = outcome_of([*START, step(1, tokens=(5, 6)), step(2), *FINISH])
    assert (outcome.verdict, outcome.signature, outcome.reasons) == ("pass", None, ())
    request = outcome.requests[0]
    assert (request.output_ids, request.text, request.finish_reason) == ((5, 6, 5), "abc", "length")
    assert request.accept_lengths == (2, 1)
    metrics = outcome.metrics
    assert (metrics.steps, metrics.generated_tokens, metrics.accept_mean) == (2, 3, 1.5)
    assert metrics.tokens_per_s == pytest.approx(3.0)
    assert (metrics.peak_rss_mb, metrics.wall_s) == (310.0, 2.5)
    assert outcome.reverted_hits == {"27338": {"27338#1": 7}}


@pytest.mark.parametrize(
    ("kind", "status", "signature", "words"),
    [
        ("timeout", -9, "hang", "killed after 2.5 s in stage run, after step 2"),
        ("memory", -9, "oom", "killed at 310 MiB resident in stage run"),
        ("signal", -11, "crash:SIGSEGV", "killed by SIGSEGV in stage run"),
        ("signal", -9, "crash:SIGKILL", "killed by SIGKILL in stage run"),
        ("exit", 3, "error@worker", "exit status 3 and no result"),
        ("done", 0, "error@worker", "exit status 0 and no result"),
        ("lost", -9, "error@worker", "fork server died"),
    ],
)
def test_a_death_is_a_failure_and_loses_nothing(kind: Any, status: int, signature: str, words: str) -> None:
    outcome = outcome_of([*START, step(1), step(2, tokens=(8, 9))], end(kind, status))
    assert (outcome.verdict, outcome.signature) == ("fail", signature)
    assert words in outcome.detail
    assert outcome.requests[0].output_ids == (5, 8, 9)
    assert outcome.metrics.steps == 2


def test_a_run_that_is_slow_is_no_hang_and_says_how_to_give_it_more_time() -> None:
    slow = replace(end("timeout", -9), going=True)
    outcome = outcome_of([*START, step(1), step(2)], slow)
    assert (outcome.verdict, outcome.signature, outcome.unavailable) == ("unknown", None, False)
    assert outcome.detail.startswith("not done within 2 s, in stage run, after step 2, and it still went on: raise")
    assert "limits.timeout_s" in outcome.detail
    found = {"event": "violation", "kind": "guard", "site": "a.b", "step": 2, "detail": ""}
    assert outcome_of([*START, step(1), found], slow).signature == "guard@a.b"
    deadline = Ledger(deadline=True)
    for event in [*START, step(1)]:
        deadline.fold(event)
    assert deadline.outcome(slow).signature == "hang", "the limit is what is tested"


def arrivals(*rids: str) -> list[dict[str, Any]]:
    return [{"event": "arrive", "rid": rid, "group": "g", "prompt_tokens": 12} for rid in rids]


def test_a_hang_names_the_requests_that_do_not_advance_and_since_when() -> None:
    rids = ("a", "b", "c", "d", "e")
    first = step(1, kind="prefill", rids=list(rids), emitted={rid: [5] for rid in rids}, accept={})
    others = step(2, rids=list(rids), emitted={"a": [], "b": [5], "c": [], "d": [], "e": []}, accept={})
    ended = {"event": "request", "rid": "e", "finish_reason": "length", "text": ""}
    outcome = outcome_of([*START[:-1], *arrivals(*rids), first, others, ended], end("timeout", -9))
    assert outcome.signature == "hang"
    assert outcome.detail.endswith("; requests a, c, d have not advanced since step 1, 1 more not since a later one")
    assert (outcome.violations[0].data["rid"], outcome.violations[0].data["since"]) == ("a", 1)


def long_run(emitted: dict[str, list[int]], last: int = 70, **changed: Any) -> list[dict[str, Any]]:
    """A run that comes to no end; of each of the steps from the second on ``emitted`` is what came."""
    steps = [step(1, rids=["a", "b"], kind="prefill", emitted={"a": [1], "b": [1]}, accept={})]
    steps += [step(n, rids=["a", "b"], emitted=emitted, accept={}, **changed) for n in range(2, last + 1)]
    return [*START[:-1], *arrivals("a", "b"), *steps]


def overrun(emitted: dict[str, list[int]], last: int = 70, **changed: Any) -> Outcome:
    """The same, stopped after its last step."""
    return outcome_of([*long_run(emitted, last, **changed), {"event": "overrun", "steps": last}, *FINISH[1:]])


def test_a_run_of_too_many_steps_hangs_if_a_request_of_them_stands_still() -> None:
    outcome = overrun({"a": [7], "b": []})
    assert (outcome.verdict, outcome.signature) == ("fail", "hang")
    assert "not done after 70 steps; request b has not advanced since step 1" in outcome.detail
    outcome = overrun({"a": [7], "b": [7]})
    assert (outcome.verdict, outcome.signature) == ("unknown", None)
    assert "not done after 70 steps, and it still went on: raise limits.max_steps" in outcome.detail
    assert overrun({"a": [7], "b": []}, last=20).verdict == "unknown", "too few to tell"
    prefilled = {"a": [], "b": []}
    assert overrun(prefilled, kind="prefill").verdict == "unknown", "a long prompt, in chunks"
    assert overrun(prefilled, kind="prefill", retracted=["a", "b"]).signature == "hang", "the same again and again"


def test_a_run_whose_steps_bring_no_request_on_hangs_also_if_its_time_is_over_first() -> None:
    over = replace(end("timeout", -9), going=True)
    outcome = outcome_of(long_run({"a": [7], "b": []}), over)
    assert outcome.signature == "hang"
    assert "request b has not advanced since step 1" in outcome.detail
    assert outcome_of(long_run({"a": [7], "b": [7]}), over).verdict == "unknown"
    lacks = {"event": "target", "name": "x", "lacks": ["steps"], "looking": ["ends"], "cannot_show": []}
    served = [lacks, *arrivals(*(f"r{n}" for n in range(80)))]
    served += [step(n + 1, f"r{n}", kind="served", accept={}) for n in range(70)]
    assert outcome_of([*START[:-1], *served], over).verdict == "unknown", "its steps are requests that have ended"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (end("exit", 1, "libgomp: Thread creation failed"), "no process or thread can be started: libgomp: Thread"),
        (end("exit", 1, "Traceback:\nMemoryError\n"), "there is no memory left: MemoryError"),
        (end("signal", -6, "terminate called: std::bad_alloc"), "there is no memory left: terminate called"),
        (replace(end("refused", 1), failure=MachineFailure("processes", "fork")), "no process or thread can be"),
        (replace(end("lost", -9), failure=MachineFailure("memory", "killed")), "there is no memory left: killed"),
        (
            replace(end("signal", -9), failure=MachineFailure("killed", "SIGKILL")),
            "a worker was killed from outside: SIGKILL",
        ),
    ],
)
def test_a_death_that_the_machine_is_to_blame_for_is_unknown(how: WorkerEnd, reason: str) -> None:
    outcome = outcome_of([*START, step(1)], how)
    assert (outcome.verdict, outcome.signature, outcome.unavailable) == ("unknown", None, True)
    assert outcome.detail.startswith(f"machine: {reason}")
    assert Outcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome


def test_a_device_that_never_answers_is_gone_and_a_later_hang_is_a_failure() -> None:
    claiming = [START[0], {"event": "claiming", "device": "cuda"}]
    outcome = outcome_of(claiming, end("timeout", -9))
    assert (outcome.verdict, outcome.detail) == (
        "unknown",
        "machine: the device is gone: cuda did not answer within 2 s",
    )
    stack = {"event": "stack", "device": "cuda", "name": "H200"}
    assert outcome_of([*claiming, stack, *START], end("timeout", -9)).signature == "hang"


def test_memory_that_a_declared_fault_took_is_the_arm_s() -> None:
    what = {"number": 0, "step": 1, "request": None, "site": None, "tensor": "process", "index": []}
    fault = {"event": "injected", "fault": "worker_out_of_memory", **what, "before": "running", "after": "allocating"}
    lack = {"event": "machine", "cause": "memory", "line": "MemoryError"}
    assert outcome_of([*START, step(1), fault, lack], end("exit", 1)).signature == "oom"
    assert outcome_of([*START, step(1), lack], end("exit", 1)).verdict == "unknown"
    assert outcome_of([*START, step(1), fault, {**lack, "cause": "disk"}], end("exit", 1)).verdict == "unknown"


def test_a_kill_that_a_declared_fault_asked_for_is_the_arm_s() -> None:
    what = {"number": 0, "step": 1, "request": None, "site": None, "tensor": "process", "index": []}
    fault = {"event": "injected", "fault": "worker_killed", **what, "before": "running", "after": "SIGKILL"}
    killed = replace(end("signal", -9), failure=MachineFailure("killed", "SIGKILL"))
    outcome = outcome_of([*START, step(1), fault], killed)
    assert (outcome.verdict, outcome.signature, outcome.machine) == ("fail", "crash:SIGKILL", None)
    assert outcome_of([*START, step(1)], killed).verdict == "unknown"


def test_the_finding_that_names_a_lost_device_says_what_became_of_it() -> None:
    step_2 = {"event": "violation", "step": 2}
    seen = {**step_2, "kind": "oob", "site": "verify.input_ids", "detail": "value not below 9", "data": {}}
    fault = {**step_2, "kind": "illegal-address", "site": "decode", "detail": "illegal memory access"}
    fault["data"] = {"device": "cuda", "lost": True}
    outcome = outcome_of([*START, step(1), seen, fault, *FINISH])
    assert outcome.signature == "oob@verify.input_ids"
    assert outcome.detail.startswith("value not below 9; then the device was lost: illegal memory access")
    assert outcome_of([*START, step(1), seen, *FINISH]).detail == "value not below 9"


def test_the_trace_depends_on_what_was_decided_not_on_how_long_it_took() -> None:
    def trace(*events: dict[str, Any]) -> str:
        return outcome_of([*START, *events, *FINISH]).trace_hash

    base = trace(step(1), step(2))
    assert trace(step(1, s=9.0), step(2)) == base
    assert trace(step(1, emitted={"g0.0": [6]}), step(2)) != base
    assert trace(step(1), step(2, kind="prefill")) != base
    assert trace(step(1), step(2, retracted=["g0.0"])) != base
    assert trace(step(1)) != base


FAULT_DUMP = """Fatal Python error: Segmentation fault

Thread 0x00007f11 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f12 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/somewhere/specdebug/engine/kernels/pointer.py", line 41 in store
  File "/somewhere/specdebug/engine/textbook/engine.py", line 160 in step
"""


def test_the_innermost_specdebug_frame_of_a_dump() -> None:
    assert innermost_frame(FAULT_DUMP) == "specdebug/engine/kernels/pointer.py:41 in store"
    assert innermost_frame("nothing of the kind") is None
    outcome = outcome_of([*START, step(1)], end("signal", -11, FAULT_DUMP))
    assert "pointer.py:41 in store" in outcome.detail
    assert outcome.signature == "crash:SIGSEGV"


def test_the_frame_of_the_last_words_is_not_where_c_plus_plus_gave_up() -> None:
    first = "Current thread 0x00007f12 (most recent call first):\n"
    assert first in FAULT_DUMP
    speaking = f'{first}  File "/somewhere/specdebug/workers/device.py", line 64 in speak\n'
    spoken = FAULT_DUMP.replace(first, speaking)
    asserted = "x/Index.cu:9: void gather(): block: [0,0,0], thread: [1,0,0] Assertion `index < size` failed.\n"
    for log, signature in ((spoken, "crash:SIGABRT"), (asserted + spoken, "assert@Index.cu")):
        outcome = outcome_of([*START, step(1)], end("signal", -6, log))
        assert outcome.signature == signature
        assert "innermost specdebug frame specdebug/engine/kernels/pointer.py:41 in store" in outcome.detail
