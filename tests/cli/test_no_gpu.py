"""A device that this machine does not have is no verdict, 125, whichever command asks for it, and said in a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specdebug.base.errors import CannotRunHere
from specdebug.campaign.loops import fault_runs
from specdebug.campaign.loops.fault_runs import verify
from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.campaign.trials.scenario import MachineCheck
from specdebug.engine.lineup import LINEUP
from specdebug.scenario.library import Library
from specdebug.verdict.outcome import Outcome

ROOT = Path(__file__).resolve().parents[2]
MINI = str(ROOT / "tests" / "cli" / "mini.yaml")
ABSENT = "cuda:99" if torch.cuda.is_available() else "cuda"
COMMANDS = [
    ["replay", MINI],
    ["replay", MINI, "--arm", "fixed"],
    ["compare", MINI, "--arm", "fixed", "--arm", "plain"],
    ["diverge", MINI, "--arm", "fixed", "--arm", "positions"],
    ["bundle", MINI, "-o", "b.specdebug"],
    ["flake", MINI, "--arm", "fixed"],
    ["bisect", MINI],
    ["bisect", MINI, "--over", "config", "--arm", "fixed", "--option", "page_size=16"],
    ["bisect", MINI, "--over", "faults", "--arm", "fixed", "--fault", "nan_logits", "--fault", "inf_logits"],
    ["minimise", MINI, "-o", "small.yaml"],
    ["toggles", "verify", "25015"],
    ["faults", "verify", "--class", "nan_logits"],
]


def specdebug(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from specdebug.cli.main import main; main()", *argv]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


def result(unavailable: bool) -> ArmResult:
    scenario = Library().scenario(MINI)
    outcome = Outcome("unknown", None, None, "there is no CUDA", None, unavailable=unavailable)
    return ArmResult(ArmRun("fixed", scenario, "fixed", 0), outcome)


def test_a_search_ends_when_the_first_arm_cannot_run_here() -> None:
    with pytest.raises(CannotRunHere, match="arm 'fixed': there is no CUDA") as caught:
        MachineCheck().check(result(unavailable=True))
    assert caught.value.exit_code == 125
    once_run = MachineCheck()
    once_run.check(result(unavailable=False))
    once_run.check(result(unavailable=True))  # such as memory that a trial takes: that trial's own matter


def test_a_matrix_of_faults_ends_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_runs.WarmPool, "wait", lambda pool: result(unavailable=True))
    monkeypatch.setattr(fault_runs.WarmPool, "start", lambda pool, run: None)
    monkeypatch.setattr(fault_runs.WarmPool, "foresee", lambda pool, run: None)
    matrix = verify([fault_runs.CLASSES["nan_logits"]], 3, 1, Library())
    assert (matrix.made, matrix.missing) == (0, 6 * len(LINEUP))
    assert isinstance(matrix.trouble, CannotRunHere)


@pytest.mark.slow
@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: " ".join(word for word in argv if word != MINI))
def test_it_is_125_and_named_for_every_command(argv: list[str], tmp_path: Path) -> None:
    ended = specdebug(tmp_path, *argv, "--device", ABSENT)
    assert ended.returncode == 125
    said = ended.stdout + ended.stderr
    assert "there is no " + ABSENT.replace("cuda", "CUDA" if ABSENT == "cuda" else "cuda") in said
    assert "Traceback" not in said
    assert not (tmp_path / "b.specdebug").exists()


@pytest.mark.slow
def test_a_scenario_s_own_device_is_no_other_case(tmp_path: Path) -> None:
    text = Path(MINI).read_text()
    assert text.count("  model: tiny\n") == 1
    (tmp_path / "gpu.yaml").write_text(text.replace("  model: tiny\n", f"  model: tiny\n  device: {ABSENT}\n"))
    ended = specdebug(tmp_path, "replay", "gpu.yaml", "--json")
    assert ended.returncode == 125
    arms = json.loads(ended.stdout)["arms"]
    assert {arm["verdict"] for arm in arms} == {"unknown"}
    assert all("there is no" in arm["detail"] for arm in arms)
