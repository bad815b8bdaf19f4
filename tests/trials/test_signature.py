"""Failures of the same kind get the same name, whatever their output says around it."""

from __future__ import annotations

import pytest

from specdebug.trials.process import Ended
from specdebug.trials.signature import signature_in, signature_of


@pytest.mark.parametrize(
    ("output", "signature"),
    [
        ("fixed | fail | oob@draft_graph.replay.topk_index | step 4", "oob@draft_graph.replay.topk_index"),
        ("async probe nan@draft.hidden_states: [step 3, 4 bad, first nan at 0]", "nan@draft.hidden_states"),
        ("cache_hit: first fail guard@draft.kv_indices->draft.kv_indptr.", "guard@draft.kv_indices->draft.kv_indptr"),
        ("first accept-drop@g0, then mismatch@request", "accept-drop@g0"),
        ("worker: crash:SIGSEGV", "crash:SIGSEGV"),
        ("/a/k.cu:88: void f(int): block: [1,0,0], thread: [3,0,0] Assertion `i < 64` failed.", "assert@k.cu:i < #"),
        ("prog: src/tree.c:12: build: Assertion `n > 0' failed.", "assert@tree.c:n > #"),
        ("Traceback\n  File\nAssertionError: got 17 of 18 at 0x7ffe01", "assert:got # of # at #"),
        ("E   AssertionError\n", "assert:AssertionError"),
        ("write to someone.error@example.com", None),
        ("all is well: 3 passed", None),
    ],
)
def test_what_an_output_says(output: str, signature: str | None) -> None:
    assert signature_in(output) == signature


def test_without_a_word_the_end_is_the_name() -> None:
    assert signature_of(Ended(7, False, "boo", 0.1)) == "exit:7"
    assert signature_of(Ended(-11, False, "", 0.1)) == "signal:SIGSEGV"
    assert signature_of(Ended(-40, False, "", 0.1)) == "signal:40"
    assert signature_of(Ended(-9, True, "nan@x.y", 0.1)) == "hang"
    assert signature_of(Ended(1, False, "nan@x.y", 0.1)) == "nan@x.y"
