"""The target: how its process is started, and what is refused before it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import InvalidOption
from specdebug.targets.base import OverThere
from specdebug.targets.inside import VARIABLE
from specdebug.targets.installs.store import Installed
from specdebug.targets.registry import find_target
from specdebug.targets.settings import ReleasedEngine
from specdebug.targets.vllm.target import VllmTarget

OPTIONS: dict[str, Any] = {"context_length": 256, "speculative": {"num_steps": 3}}


@pytest.fixture
def target(tmp_path: Path) -> VllmTarget:
    folder = tmp_path / "vllm-0.32.0-cpu"
    Installed(folder, "vllm", "0.32.0", "cpu", sys.executable, False, done=("installed",)).write()
    made = find_target(ReleasedEngine(release="vllm==0.32.0", store=str(tmp_path), env={"A": "b"}, mends=False))
    assert isinstance(made, VllmTarget)
    return made


def test_our_server_is_run_by_its_python_with_the_scenario_s_options(target: VllmTarget, tmp_path: Path) -> None:
    command = target.command(OPTIONS, 7, OverThere(tape="/a/tape"))
    assert command.words == (
        sys.executable, "-P", "-s", "-m", "specdebug.targets.vllm.inside.serve", "--port", "{port}",
    )  # fmt: skip
    wanted = json.loads(command.env[VARIABLE])
    assert (wanted["device"], wanted["reverts"], command.env["A"]) == ("cpu", [], "b")
    assert wanted["tape"] == "/a/tape"
    engine = wanted["engine"]
    assert (engine["model"], engine["seed"]) == (str(checkpoint_path("tiny").resolve()), 7)
    assert tmp_path / "vllm-0.32.0-cpu" / "checkpoints" in Path(engine["speculative_config"]["model"]).parents
    assert command.env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert (Path(command.env["PYTHONPATH"]) / "specdebug").is_symlink()


def test_a_tree_is_refused_before_anything_is_started(target: VllmTarget) -> None:
    asked = target.asked(OPTIONS)
    assert (asked.server, asked.unused, asked.context_length) == (True, (), 256)
    with pytest.raises(InvalidOption, match=r"speculative\.eagle_topk: vLLM drafts chains, not trees"):
        target.asked({"speculative": {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 4}})
