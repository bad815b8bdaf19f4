"""The target: how its server is started, by which folders its processes find us, and what is refused before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from specdebug import __version__ as VERSION
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import SpecDebugError
from specdebug.kernel_memory.finding import KernelRule
from specdebug.patching.drift.check import Fit
from specdebug.patching.drift.dist import Dist
from specdebug.patching.toggles import load_registry
from specdebug.targets.base import Opening, OverThere
from specdebug.targets.inside.source import Source
from specdebug.targets.inside.words import VARIABLE
from specdebug.targets.installed import make_import_folder
from specdebug.targets.installs import fit
from specdebug.targets.installs.store import Installed, StoreError
from specdebug.targets.launch.target import StartedTarget
from specdebug.targets.registry import find_target
from specdebug.targets.settings import ReleasedEngine
from specdebug.targets.sglang.target import PLUGINS, SglangTarget, files_to_import


def test_another_python_finds_our_package_and_nothing_of_our_environment(tmp_path: Path) -> None:
    site = make_import_folder(tmp_path, {"more/one.py": "X = 1\n"})
    ask = "import importlib.util as u, specdebug, more.one; print(more.one.X, u.find_spec('typer') is None)"
    asked = subprocess.run(
        [sys.executable, "-S", "-c", ask], env={"PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert (asked.stdout, asked.stderr) == ("1 True\n", "")


ASK = """
import importlib.metadata, importlib.util
(point,) = importlib.metadata.entry_points(group="{group}")
print(point.name, point.value, importlib.util.find_spec("specdebug") is not None)
import torchvision
print(torchvision.transforms.Resize.__name__, importlib.util.find_spec("typer") is None)
"""


def test_another_python_finds_the_plugin_and_empty_modules(tmp_path: Path) -> None:
    site = make_import_folder(tmp_path, files_to_import(["torchvision"], cpu=True))
    asked = subprocess.run(
        [sys.executable, "-S", "-c", "import sitecustomize" + ASK.format(group=PLUGINS)],
        env={"PYTHONPATH": str(site)}, capture_output=True, text=True,
    )  # fmt: skip
    assert asked.stderr == ""
    assert asked.stdout == "specdebug specdebug.targets.sglang.inside.plugin:register True\nResize True\n"


def test_on_a_gpu_it_has_its_own_kernels() -> None:
    assert {name.partition("/")[0] for name in files_to_import(["a"], cpu=False)} == {
        f"specdebug_inside-{VERSION}.dist-info"
    }


OPTIONS: dict[str, Any] = {"attention_backend": "fa3", "speculative": {"num_steps": 3}, "page_size": 4}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("specdebug.targets.sglang.target.source_of", lambda here: Source(tmp_path))
    folder = tmp_path / "sglang-0.5.13-cpu"
    Installed(folder, "sglang", "0.5.13", "cpu", sys.executable, False, done=("installed",)).write()
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
    model = f"--model-path {checkpoint_path('tiny').resolve()}"
    for part in ("--page-size 4", "--attention-backend fa3", "--random-seed 7", model):
        assert part in said, part
    draft = Path(command.words[command.words.index("--speculative-draft-model-path") + 1])
    assert draft.parent == store / "sglang-0.5.13-cpu" / "checkpoints"
    assert json.loads((draft / "config.json").read_text())["tie_word_embeddings"] is False
    assert (command.env["TRITON_INTERPRET"], command.env["A"]) == ("1", "b")
    nothing: dict[str, Any] = {name: [] for name in ("reverts", "probes", "kernels", "sites", "shows")}
    assert json.loads(command.env[VARIABLE]) == {"device": "cpu", "release": "0.5.13", "tape": None, **nothing}
    assert (Path(command.env["PYTHONPATH"]) / "specdebug").is_symlink()


def test_its_environment_is_its_own(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("SGLANG_DEBUG_REVERT_PR", "1")
    monkeypatch.setenv("PYTHONPATH", "/ours")
    looked_at = OverThere(kernels=(KernelRule("*", "record", ("outside",)),))
    env, looked = (target(store).command(OPTIONS, 0, there).env for there in (OverThere(), looked_at))
    assert "SGLANG_DEBUG_REVERT_PR" not in env
    assert "/ours" not in env["PYTHONPATH"]
    assert env["TMPDIR"] == "{scratch}"
    assert "{scratch}" not in env["TORCHINDUCTOR_CACHE_DIR"]
    moves = "SGLANG_NATIVE_MOVE_KV_CACHE"  # by torch, unless kernels are looked at
    assert (env.get(moves), looked.get(moves)) == ("1", None)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    assert target(store).command(OPTIONS, 0, OverThere()).env["TORCHINDUCTOR_CACHE_DIR"] == "/mine"


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


def test_what_cannot_be_is_refused_before_anything_is_started(store: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"not installed in .*specdebug engines install sglang==0\.5\.13"):
        target(tmp_path / "none").command(OPTIONS, 0, OverThere())
    with pytest.raises(SpecDebugError, match=r"engine\.page_sze: unknown key"):
        target(store).asked({"page_sze": 4})
    asked, plain = target(store).asked(OPTIONS), target(store).asked({"model": "tiny"})
    assert (asked.server, asked.unused, asked.drafts, asked.probed) == (True, (), True, True)
    assert (asked.joint, plain.joint) == ("first", "all")  # sampled tokens that top-k and top-p cut at once


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
    said: list[str] = []
    opening = Opening("x", lambda event, text: said.append(text), None)  # type: ignore[arg-type]
    monkeypatch.setattr(StartedTarget, "open", lambda *_: None)
    for mends in (True, False):
        target(store, mends=mends).open(OPTIONS, 0, opening)
    (told,) = [text for text in said if "mended" in text]
    assert told.startswith("known bugs of sglang==0.5.13 are mended: 23802, 28254, 31599; `mends: false`")
