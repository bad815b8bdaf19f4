"""The whole matrix, and every shipped scenario, on the real engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specdebug.patching.toggles import load_registry

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from specdebug.cli.main import main; main()"]
# The flaky ones are run, fresh and warm, in tests/campaign/loops/test_warm.py.
SCENARIOS = sorted(p.stem for p in (ROOT / "scenarios").glob("*.yaml") if not p.stem.startswith("flaky_"))


@pytest.mark.slow
def test_every_toggle_is_live() -> None:
    ended = subprocess.run(
        [*COMMAND, "toggles", "verify", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    rows = json.loads(ended.stdout)
    assert {row["pr"]: row["problems"] for row in rows if not row["live"]} == {}
    shown = sum(len(toggle.detections) for toggle in load_registry().toggles.values())
    assert (ended.returncode, len(rows)) == (0, shown)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_arm_of_every_scenario_does_what_is_expected_of_it(name: str) -> None:
    ended = subprocess.run([*COMMAND, "replay", name, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    arms = json.loads(ended.stdout)["arms"]
    assert {arm["arm"]: arm["signature"] for arm in arms if not arm["met"]} == {}
    assert ended.returncode == 0
    assert max(arm["metrics"]["peak_rss_mb"] for arm in arms) < 1024


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("plan", ["flashinfer", "fa3", "triton"])
def test_every_toggle_is_live_on_a_gpu(plan: str) -> None:
    argv = ["toggles", "verify", "--device", "cuda", "--backend", plan, "--json"]
    ended = subprocess.run([*COMMAND, *argv], cwd=ROOT, capture_output=True, text=True, timeout=900)
    rows = json.loads(ended.stdout)
    assert {row["pr"]: row["problems"] for row in rows if not row["live"]} == {}
    assert {row["stack"]["device"] for row in rows} == {"cuda"}
    assert {row["backend"] for row in rows if not row["keeps_backend"]} == {plan}
