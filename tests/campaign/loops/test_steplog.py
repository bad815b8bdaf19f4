from __future__ import annotations

import pytest

from specdebug.campaign.loops.steplog import EngineStep, Recording
from tests.report.samples import step


def test_steps_are_kept_by_arm_in_order_and_nothing_else_is() -> None:
    recording = Recording()
    recording.take("a", {"event": "stage", "name": "run"})
    recording.take("a", step(1, "prefill"))
    recording.take("b", step(1))
    recording.take("a", step(2, accept={"x": 2, "y": 5}, finished=["x"], s=0.5))
    assert [(one.number, one.kind) for one in recording.of("a")] == [(1, "prefill"), (2, "decode")]
    assert len(recording.of("b")) == 1
    assert recording.of("never ran") == []
    second = recording.of("a")[1]
    assert (second.accept_mean, second.emitted, second.finished, second.seconds) == (3.5, 2, ("x",), 0.5)


def test_the_requests_that_some_arm_retracted() -> None:
    recording = Recording()
    for arm, gone in (("a", []), ("b", ["x"]), ("b", ["y", "x"])):
        recording.take(arm, step(1) | {"retracted": gone})
    assert recording.retracted == {"x", "y"}


def test_a_step_without_a_verify_has_no_mean() -> None:
    assert EngineStep.of(step(1)).accept_mean is None
    assert EngineStep.of(step(1, accept={"x": 3})).accept_mean == pytest.approx(3)
