"""Whole runs of the real engine through the command line: one small scenario, several readers."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from specdebug.patching.toggles import load_registry
from specdebug.verdict.outcome import Outcome
from tests.cli.command import spawn

ROOT = Path(__file__).resolve().parents[2]
MINI = Path(__file__).with_name("mini.yaml")


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, subprocess.CompletedProcess[str], Path]:
    junit = tmp_path_factory.mktemp("junit") / "out.xml"
    ended = spawn("replay", str(MINI), "--json", "--junit", str(junit))
    return json.loads(ended.stdout), ended, junit


def arm(document: Any, name: str) -> Any:
    return next(item for item in document["arms"] if item["arm"] == name)


def test_every_arm_does_what_the_file_expects(replayed: Any) -> None:
    document, ended, _ = replayed
    assert {item["arm"]: item["verdict"] for item in document["arms"]} == {
        "fixed": "pass",
        "plain": "pass",
        "positions": "fail",
        "unreached": "unknown",
    }
    assert all(item["met"] for item in document["arms"])
    assert (ended.returncode, document["exit_code"]) == (0, 0)
    assert "Traceback" not in ended.stderr


def test_what_was_measured(replayed: Any) -> None:
    fixed = arm(replayed[0], "fixed")
    metrics = fixed["metrics"]
    assert metrics["generated_tokens"] == 16
    assert metrics["cached_tokens"] == 7
    assert metrics["accept_cold"] is not None
    assert metrics["tokens_per_s"] > 0
    assert 50 < metrics["peak_rss_mb"] < 1024
    assert metrics["steps"] > 2
    again = next(request for request in fixed["requests"] if request["rid"] == "again.0")
    assert again["cold_accept_lengths"] == again["accept_lengths"]
    assert fixed["reached_sites"]["draft.forward.positions"] > 0
    assert arm(replayed[0], "plain")["requests"][0]["output_ids"] == fixed["requests"][0]["output_ids"]
    assert Outcome.from_dict({k: fixed[k] for k in Outcome.__dataclass_fields__}).verdict == "pass"


@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_revert_on_the_command_line_gives_the_plain_verdict(how: str) -> None:
    if how == "option":
        ended = spawn("replay", str(MINI), "--revert", "25015")
    else:
        ended = spawn("replay", str(MINI), "--arm", "fixed", SGLANG_DEBUG_REVERT_PR="25015")
    assert ended.returncode == 1
    assert ended.stdout.rstrip().splitlines()[-1].startswith("mini: fixed - 25015 fail oob@draft.forward.positions (")


def test_a_revert_that_is_not_exercised_is_125() -> None:
    assert spawn("replay", str(MINI), "--revert", "27360").returncode == 125


@pytest.mark.slow
def test_compare_finds_that_drafting_changes_no_output() -> None:
    ended = spawn("compare", str(MINI), "--arm", "fixed", "--arm", "plain")
    assert ended.returncode == 0
    assert "outputs and verdicts agree" in ended.stdout
    ended = spawn("compare", str(MINI), "--arm", "fixed", "--arm", "positions", "--json")
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["agree"]) == (1, False)
    assert all(request["same_output"] for request in document["requests"])


def test_verify_tells_live_toggles_that_edit_one_line_and_are_reverted_in_turn() -> None:
    ended = spawn("toggles", "verify", "26329", "28254", "--json")
    rows = json.loads(ended.stdout)
    assert (ended.returncode, {row["pr"] for row in rows}) == (0, {26329, 28254})
    assert all((row["live"], row["silent"], row["detected"]) == (True, 1, 1) for row in rows)


def test_doctor_finds_everything_here() -> None:
    ended = spawn("doctor", "--json")
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["problems"]) == (0, [])
    assert document["facts"]["torch"]
    assert document["facts"]["toggles"] >= 10
    assert {"NVIDIA driver", "nvcc", "triton", "flashinfer", "flash-attn", "GPUs"} <= set(document["facts"])
    assert all(document["facts"][f"plan {plan}"] for plan in ("flashinfer", "fa3", "triton"))
    if not torch.cuda.is_available():
        assert document["facts"]["GPUs"] == "none; everything runs on the CPU"
        assert document["facts"]["plan flashinfer"] == "torch reference"


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")
def cpu_s(pid: int) -> float:
    """Processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# The flaky ones are run, fresh and warm, in tests/campaign/loops/test_warm.py.
SCENARIOS = sorted(p.stem for p in (ROOT / "scenarios").glob("*.yaml") if not p.stem.startswith("flaky_"))


@pytest.mark.slow
def test_every_toggle_is_live() -> None:
    ended = spawn("toggles", "verify", "--json", timeout=900)
    rows = json.loads(ended.stdout)
    assert {row["pr"]: row["problems"] for row in rows if not row["live"]} == {}
    shown = sum(len(toggle.detections) for toggle in load_registry().toggles.values())
    assert (ended.returncode, len(rows)) == (0, shown)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_arm_of_every_scenario_does_what_is_expected_of_it(name: str) -> None:
    ended = spawn("replay", name, "--json")
    arms = json.loads(ended.stdout)["arms"]
    assert {arm["arm"]: arm["signature"] for arm in arms if not arm["met"]} == {}
    assert ended.returncode == 0
    assert max(arm["metrics"]["peak_rss_mb"] for arm in arms) < 1024


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("plan", ["flashinfer", "fa3", "triton"])
def test_every_toggle_is_live_on_a_gpu(plan: str) -> None:
    ended = spawn("toggles", "verify", "--device", "cuda", "--backend", plan, "--json", timeout=900)
    rows = json.loads(ended.stdout)
    assert {row["pr"]: row["problems"] for row in rows if not row["live"]} == {}
    assert {row["stack"]["device"] for row in rows} == {"cuda"}
    assert {row["backend"] for row in rows if not row["keeps_backend"]} == {plan}
