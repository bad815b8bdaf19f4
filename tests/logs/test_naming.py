"""Failures of the same kind get the same name, whatever their output says around it."""

import pytest

from specdebug.logs.scan import name_of, scan_bytes
from specdebug.verdict.deaths import death_of
from specdebug.workers.job import WorkerEnd


@pytest.mark.parametrize(
    ("output", "signature"),
    [
        ("fixed | fail | oob@draft_graph.replay.topk_index | step 4", "oob@draft_graph.replay.topk_index"),
        ("async probe nan@draft.hidden_states: [step 3, 4 bad, first nan at 0]", "nan@draft.hidden_states"),
        ("cache_hit: first fail guard@draft.kv_indices->draft.kv_indptr.", "guard@draft.kv_indices->draft.kv_indptr"),
        ("first accept-drop@g0, then mismatch@request", "accept-drop@g0"),
        ("worker: crash:SIGSEGV", "crash:SIGSEGV"),
        ("/a/k.cu:88: void f(int): block: [1,0,0], thread: [3,0,0] Assertion `i < 64` failed.", "assert@k.cu"),
        ("prog: src/tree.c:12: build: Assertion `n > 0' failed.", "assert:n>#@tree.c"),
        ("Traceback\n  File\nAssertionError: got 17 of 18 at 0x7ffe01", "assert:got # of # at #"),
        ("E   AssertionError\n", "assert:AssertionError"),
        ("write to someone.error@example.com", "exit:1"),
        ("all is well: 3 passed", "exit:1"),
        ("ValueError: Detected errors during sampling! NaN in the logits.", "nan@sampler.logits"),
        ("httpx.ReadTimeout: The read operation timed out", "error:ReadTimeout:The read operation timed out"),
        ("WARNING: ConnectionError: again\nValueError: NaN in the logits\nnan@verify.logits", "nan@verify.logits"),
        ("ValueError: x\n" + "ordinary\n" * 100_000 + "that is all", "error:ValueError:x"),
    ],
)
def test_a_failed_command_is_named_by_its_output(output: str, signature: str) -> None:
    assert name_of(scan_bytes(output.encode()), 1) == signature


@pytest.mark.parametrize(
    ("status", "signature"),
    [(7, "exit:7"), (139, "crash:SIGSEGV"), (-11, "crash:SIGSEGV"), (-9, "crash:SIGKILL"), (-40, "signal:40"),
     (-2, "signal:SIGINT"), (143, "crash:SIGTERM"), (200, "exit:200")],
)  # fmt: skip
def test_without_a_word_the_end_is_the_name(status: int, signature: str) -> None:
    assert name_of(scan_bytes(b"boo"), status) == signature


def test_the_stronger_of_output_and_end_is_the_name() -> None:
    log = scan_bytes(b"ValueError: x\n")
    assert name_of(log, -11) == "crash:SIGSEGV"
    assert name_of(log, -9) == "error:ValueError:x"  # what was killed from outside had failed before
    assert name_of(scan_bytes(b"nan@verify.logits\n"), -11) == "nan@verify.logits"


WHERE = "block: [0,0,0], thread: [31,0,0] Assertion"
PROBE = "async probe oob@draft_graph.replay.topk_index: value not below 2048"


@pytest.mark.parametrize(
    ("log", "signature"),
    [
        (f"/a/TensorCompare.cu:112: _assert_async_cuda_kernel: {WHERE} `{PROBE}` failed.\n",
         "oob@draft_graph.replay.topk_index"),
        (f"/a/IndexKernel.cu:111: operator(): {WHERE} `index < sizes[i]` failed.\n", "assert@IndexKernel.cu"),
        (f"/a/kv_indices.py:57: write_kv_indices: {WHERE} `slot in range` failed.\n", "assert@write_kv_indices"),
        ("loading\n", "crash:SIGABRT"),
    ],
)  # fmt: skip
def test_a_scenario_s_worker_and_a_command_die_by_the_same_name(log: str, signature: str) -> None:
    dead = death_of(WorkerEnd("signal", -6, 1.0, 100.0, log), 3, "run")
    assert dead is not None
    assert dead.signature == signature
    assert name_of(scan_bytes(log.encode()), -6) == signature
