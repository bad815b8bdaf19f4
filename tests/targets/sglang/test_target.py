"""The target: how its server is started, and what is refused before it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import SpecDebugError
from specdebug.kernel_memory.rules import KernelRule
from specdebug.patching.drift.dist import Dist
from specdebug.patching.drift.fit import Fit
from specdebug.patching.toggles import load_registry
from specdebug.targets.base import Opening, OverThere
from specdebug.targets.inside import VARIABLE
from specdebug.targets.inside.source import Source
from specdebug.targets.installs import fit
from specdebug.targets.installs.store import Installed, StoreError
from specdebug.targets.registry import find_target
from specdebug.targets.settings import ReleasedEngine
from specdebug.targets.sglang.target import SglangTarget

OPTIONS: dict[str, Any] = {"attention_backend": "fa3", "speculative": {"num_steps": 3}, "page_size": 4}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("specdebug.targets.sglang.target.source_of", lambda here: Source(tmp_path))
    Installed(
        tmp_path / "sglang-0.5.13-cpu", "sglang", "0.5.13", "cpu", sys.executable, False, done=("installed",)
    ).write()
    return tmp_path


def target(store: Path, **more: Any) -> SglangTarget:
    made = find_target(ReleasedEngine(release="sglang==0.5.13", store=str(store), **{"mends": False, **more}))
    assert isinstance(made, SglangTarget)
    return made


def test_a_server_of_the_release_is_started_with_the_scenario_s_options(store: Path) -> None:
    command = target(store, arguments=("--log-level", "debug"), env={"A": "b"}).command(OPTIONS, 7, OverThere())
    said = " ".join(command.words)
    assert said.startswith(f"{sys.executable} -P -s -m sglang.launch_server --port {{port}} ")
    assert said.endswith(" --log-level debug")
    for part in (
        "--page-size 4",
        "--attention-backend fa3",
        "--random-seed 7",
        f"--model-path {checkpoint_path('tiny').resolve()}",
    ):
        assert part in said, part
    draft = Path(command.words[command.words.index("--speculative-draft-model-path") + 1])
    assert draft.parent == store / "sglang-0.5.13-cpu" / "checkpoints"
    assert json.loads((draft / "config.json").read_text())["tie_word_embeddings"] is False
    assert (command.env["TRITON_INTERPRET"], command.env["A"]) == ("1", "b")
    inside = json.loads(command.env[VARIABLE])
    assert inside == {
        "device": "cpu",
        "release": "0.5.13",
        "reverts": [],
        "probes": [],
        "kernels": [],
        "sites": [],
        "tape": None,
        "shows": [],
    }
    assert (Path(command.env["PYTHONPATH"]) / "specdebug").is_symlink()


def test_kv_is_moved_by_torch_unless_kernels_are_looked_at(store: Path) -> None:
    looked_at = OverThere(kernels=(KernelRule("*", "record", ("outside",)),))
    moves = [
        target(store).command(OPTIONS, 0, there).env.get("SGLANG_NATIVE_MOVE_KV_CACHE")
        for there in (OverThere(), looked_at)
    ]
    assert moves == ["1", None]


def test_its_processes_get_the_patches_of_every_revert(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def patches_of(here: Installed, toggles: Any) -> list[dict[str, Any]]:
        asked.append((here.version, toggles))
        return [{"pr": 1, "patches": []}]

    monkeypatch.setattr("specdebug.targets.installed.patches_of", patches_of)
    toggles = tuple(load_registry().all[:2])
    env = target(store).command(OPTIONS, 0, OverThere(toggles)).env
    assert asked == [("0.5.13", toggles)]
    assert json.loads(env[VARIABLE])["reverts"] == [{"pr": 1, "patches": []}]
    assert "SGLANG_DEBUG_REVERT_PR" not in env


def test_what_is_not_installed_is_said_how_to_install(tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match=r"sglang==0\.5\.13 is not installed in .*specdebug engines install sglang==0\.5\.13"
    ):
        target(tmp_path).command(OPTIONS, 0, OverThere())


def test_options_that_no_engine_has_are_refused_before_anything_is_started(store: Path) -> None:
    with pytest.raises(SpecDebugError, match=r"engine\.page_sze: unknown key"):
        target(store).asked({"page_sze": 4})
    asked = target(store).asked(OPTIONS)
    assert (asked.server, asked.unused, asked.drafts) == (True, (), True)


def test_known_bugs_are_mended_and_said_to_be_unless_that_is_left_out(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry's mends of this release; that they fit it, tests/engines shows."""
    monkeypatch.setattr(fit, "_dist", lambda engine, python, version: Dist(engine, Version(version), None))  # type: ignore[arg-type]
    monkeypatch.setattr(fit, "fit", lambda dist, wanted: Fit((), ()))
    known = [toggle.pr for toggle in load_registry().all if "sglang" in toggle.mends]
    inside = json.loads(target(store, mends=True).command(OPTIONS, 7, OverThere()).env[VARIABLE])
    assert [each["pr"] for each in inside["reverts"]] == known
    there = OverThere(toggles=load_registry().select(27338, "sglang"))
    inside = json.loads(target(store, mends=True).command(OPTIONS, 7, there).env[VARIABLE])
    assert [each["pr"] for each in inside["reverts"]] == [27338, *known]
    opening = Opening("x", lambda *_, **__: None, None)  # type: ignore[arg-type]
    (said,) = target(store, mends=True)._mended(target(store).installed(), opening)
    assert said.startswith("known bugs of sglang==0.5.13 are mended: 23802, 28254, 31599; `mends: false`")
    assert list(target(store)._mended(target(store).installed(), opening)) == []
