"""Keeping a run's steps, and saying how two runs differ."""

from __future__ import annotations

from typing import Any

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.bundle.run import (
    MAX_SHOWN,
    Recorded,
    changed_versions,
    differences,
    recorded_of,
    run_traced,
    steps_hash,
    versions_here,
)
from specdebug.scenario.library import Library
from specdebug.workers.job import WorkerEnd
from tests.bundle.bundles import arm_run, traced
from tests.run.fakes import FakePool, good_run

BEFORE = Recorded("fail", "nan@a", "00", ("[1]", "[2]"))


def test_the_steps_hash_to_the_trace_hash() -> None:
    done = traced(arm_run())
    assert len(done.steps) == 1
    assert steps_hash(done.steps) == done.result.outcome.trace_hash
    assert differences(recorded_of(done), recorded_of(done)) == ()


@pytest.mark.parametrize(
    ("now", "lines"),
    [
        (Recorded("pass", None, "00", BEFORE.steps),
         ("verdict: recorded fail, now pass", "signature: recorded nan@a, now none")),
        (Recorded("fail", "nan@a", "11", ("[1]", "[3]")),
         ("trace hash: recorded 00, now 11", "step 2: recorded [2]", "step 2: now [3]")),
        (Recorded("fail", "nan@a", "11", ("[1]",)),
         ("trace hash: recorded 00, now 11", "steps: recorded 2, now 1; equal as far as both go")),
    ],
)  # fmt: skip
def test_what_differs_is_named(now: Recorded, lines: tuple[str, ...]) -> None:
    assert differences(BEFORE, now) == lines


def test_a_long_step_is_cut() -> None:
    now = Recorded("fail", "nan@a", "11", ("[" + "1," * 500 + "1]",))
    assert max(map(len, differences(BEFORE, now))) < MAX_SHOWN + 30


def test_versions_that_differ_are_named() -> None:
    assert changed_versions({"torch": "2.11", "os": "x"}, {"torch": "2.13", "os": "x", "triton": "3.6"}) == (
        "torch: recorded 2.11, here 2.13",
        "triton: recorded none, here 3.6",
    )
    here = versions_here({"device": "cpu", "name": "CPU", "dtype": "float16", "arithmetic": {"cpu capability": "AVX2"}})
    assert (here["cpu capability"], here["dtype"]) == ("AVX2", "float16")
    assert here["device"] == "cpu CPU"
    assert {"specdebug", "python", "torch", "os"} <= here.keys()


def test_an_interrupted_arm_is_no_result() -> None:
    run = arm_run()
    done = run_traced(FakePool(good_run, interrupt_at=run.key), Library(), run)  # type: ignore[arg-type]
    assert done is not None
    assert done.interrupted


def test_what_the_worker_finds_wrong_with_the_scenario_is_an_error() -> None:
    def at_fault(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        return [{"event": "usage", "message": "there is no CUDA"}], WorkerEnd("done", 0, 0.1, 1.0, "")

    with pytest.raises(SpecDebugError, match="there is no CUDA"):
        traced(arm_run(), at_fault)
