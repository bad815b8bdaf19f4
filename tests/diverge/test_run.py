"""Looking at what differs runs both arms once more; a machine that fails then leaves nothing to look at."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.diverge import run as module
from specdebug.diverge.run import Diverging
from specdebug.scenario.grammar import Arm, Scenario, TokenPrompt, WorkloadGroup
from specdebug.verdict.outcome import not_run
from specdebug.workers.machine_failure import MachineFailed, MachineFailure

SCENARIO = Scenario("s", (WorkloadGroup("g0", TokenPrompt((1, 2))),), {"a": Arm("a"), "b": Arm("b")}, {})


class Share(NamedTuple):
    """Of a step, as far as it is looked at here."""

    step: int
    call: int
    descriptor: Any

    def __hash__(self) -> int:
        return hash((self.step, self.call))


def test_values_that_the_machine_could_not_keep_end_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = MachineFailure("device", "No CUDA GPUs are available")

    def fail(pool: Any, library: Any, runs: list[ArmRun], progress: Any) -> tuple[list[ArmResult], bool]:
        return [ArmResult(run, not_run(lost, run.target_name)) for run in runs], False

    monkeypatch.setattr(module, "run_arms", fail)
    pool, library = SimpleNamespace(), SimpleNamespace()
    left, right = (ArmRun(name, SCENARIO, name, 0) for name in "ab")
    diverging = Diverging(pool, library, (left, right), tmp_path)  # type: ignore[arg-type]
    part = Share(1, 2, SimpleNamespace(site="draft.logits"))
    with pytest.raises(MachineFailed) as caught, diverging._kept([(part, part)]):  # type: ignore[list-item]
        pytest.fail("there is nothing to compare")
    assert caught.value.failure == lost
