"""The target: where its workers live, how its own server is started, and what is refused before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import InvalidOption, SpecDebugError
from specdebug.patching import Patch
from specdebug.patching.drift.check import Fit
from specdebug.patching.drift.dist import Dist
from specdebug.patching.toggles import Toggle, load_registry
from specdebug.targets.algorithms import SGLANG
from specdebug.targets.base import OverThere
from specdebug.targets.inside.source import Source
from specdebug.targets.installed import make_import_folder
from specdebug.targets.installs import fit
from specdebug.targets.installs.store import Installed, StoreError
from specdebug.targets.registry import find_target
from specdebug.targets.relations import RELATIONS, NoTwin
from specdebug.targets.settings import ReleasedEngine
from specdebug.targets.sglang.target import EMPTY, PLUGINS, SglangTarget, draft_folder, files_to_import


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
    assert asked.stdout == "specdebug specdebug.targets.sglang.inside.stand_ins:prepare_for_cpu True\nResize True\n"


def test_on_a_gpu_it_has_its_own_kernels() -> None:
    assert files_to_import(["a"], cpu=False) == {}


SITE = Patch.of("probe sites", "sglang.rows:width", ("return 3", "probe()\nreturn 3"))
OPTIONS: dict[str, Any] = {"attention_backend": "fa3", "speculative": {"num_steps": 3}, "page_size": 4}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("specdebug.targets.sglang.target.source_of", lambda here: Source(tmp_path))
    monkeypatch.setattr("specdebug.targets.sglang.target.sites_of", lambda here, sites: ([SITE], []))
    monkeypatch.setattr("specdebug.targets.installed._found", {})
    install(tmp_path, "cpu")
    return tmp_path


def install(store: Path, device: str) -> None:
    folder = store / f"sglang-0.5.13-{device}"
    Installed(folder, "sglang", "0.5.13", device, sys.executable, False, done=("installed",)).write()


def target(store: Path, **more: Any) -> SglangTarget:
    made = find_target(ReleasedEngine(release="sglang==0.5.13", store=str(store), **{"mends": False, **more}))
    assert isinstance(made, SglangTarget)
    return made


def test_a_server_of_the_release_is_started_with_the_scenario_s_options(store: Path) -> None:
    command = target(store, arguments=("--log-level", "debug"), env={"A": "b"}).command(OPTIONS)
    said = " ".join(command.words)
    assert said.startswith(f"{sys.executable} -P -s -m sglang.launch_server --port {{port}} ")
    assert said.endswith(" --log-level debug")
    model = f"--model-path {checkpoint_path('tiny').resolve()}"
    for part in ("--page-size 4", "--attention-backend fa3", "--random-seed 0", "--sleep-on-idle", model):
        assert part in said, part
    draft = Path(command.words[command.words.index("--speculative-draft-model-path") + 1])
    assert draft.parent == store / "sglang-0.5.13-cpu" / "checkpoints"
    assert json.loads((draft / "config.json").read_text())["tie_word_embeddings"] is False
    assert (command.env["TRITON_INTERPRET"], command.env["A"]) == ("1", "b")
    assert (Path(command.env["PYTHONPATH"]) / "specdebug").is_symlink()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_its_workers_run_with_its_python_and_on_a_cpu_are_forked_with_the_engine_imported(
    device: str, store: Path
) -> None:
    install(alone := store / "alone", device)
    home = target(alone, env={"A": "b"}).home()
    (site,) = map(Path, home.path)
    assert home.python == sys.executable
    assert (site / "specdebug").is_symlink()
    env, on_cpu = dict(home.env), device == "cpu"
    assert (env["A"], env.get("TRITON_INTERPRET")) == ("b", "1" if on_cpu else None)
    assert ("specdebug.targets.sglang.inside.imported" in home.preload) is on_cpu
    assert ((site / f"{EMPTY}.py").exists(), EMPTY in home.preload) == (on_cpu, on_cpu)
    assert target(alone, env={"A": "b"}).home() == home, "workers of one home share its fork server"


def test_a_checkout_stands_in_front_of_what_it_imports(store: Path, tmp_path: Path) -> None:
    (tmp_path / "checkout" / "python" / "sglang").mkdir(parents=True)
    (tmp_path / "checkout" / "python" / "sglang" / "__init__.py").write_text("")
    (tmp_path / "site" / "sglang").mkdir(parents=True)
    fit._package.cache_clear()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fit, "_package", lambda python, name: tmp_path / "site" / name)
        own = target(store, tree=str(tmp_path / "checkout"))
        tree, site = own.home().path
        assert (Path(tree) / "sglang" / "__init__.py").exists()
        assert (Path(site) / "specdebug").is_symlink()
        assert own.home() != target(store).home()
        (note,) = (each for each in own.notes_of({}, own.installed(), OverThere()) if "checkout" in each)
    assert note == f"the code is that of {tmp_path / 'checkout'}, beside the dependencies of sglang==0.5.13"
    with pytest.raises(SpecDebugError, match=r"target\.commit: abc is one of a checkout, which target\.tree names"):
        target(store, commit="abc").installed()


def test_a_server_s_environment_finds_none_of_our_packages(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/ours")
    assert "/ours" not in target(store).command(OPTIONS).env["PYTHONPATH"]


def test_a_worker_gets_the_patches_of_every_revert(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def patches_of(here: Installed, toggles: Any) -> list[Patch]:
        asked.append((here.version, [toggle.pr for toggle in toggles]))
        return [Patch.of(str(toggles[0].pr), "sglang.rows:width", ("return 3", "return 4"))]

    monkeypatch.setattr("specdebug.targets.installed.patches_of", patches_of)
    toggles = tuple(each for each in load_registry().all if "sglang" not in each.mends)[:2]
    numbers = [toggle.pr for toggle in toggles]
    patches = target(store).patches(toggles)
    assert {number: [each.owner for each in found] for number, found in patches.items()} == {
        **{number: [str(number)] for number in numbers}, 0: ["probe sites"],
    }  # fmt: skip
    assert asked == [("0.5.13", [number]) for number in numbers]
    assert target(store).patches(toggles) == patches
    assert len(asked) == 2, "what was found is kept"


def test_what_cannot_be_is_refused_before_anything_is_started(store: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"not installed in .*specdebug engines install sglang==0\.5\.13"):
        target(tmp_path / "none").command(OPTIONS)
    with pytest.raises(SpecDebugError, match=r"engine\.page_sze: unknown key"):
        target(store).asked({"page_sze": 4})
    asked, plain = target(store).asked(OPTIONS), target(store).asked({"model": "tiny"})
    assert (asked.server, asked.unused, asked.drafts, asked.probed) == (False, (), True, False)
    assert (asked.device, asked.guards, asked.graphs, asked.draft_model) == ("cpu", False, (), "tiny-eagle")
    assert (asked.joint, plain.joint) == ("first", "all")  # sampled tokens that top-k and top-p cut at once


def test_what_no_reference_of_ours_is_a_model_of_is_not_judged_by_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(store / "cache"))
    release = target(store)
    asked = [release.asked(each) for each in (OPTIONS, {"kv_cache_dtype": "fp8_e4m3"}, {"model": "tiny-windows"})]
    assert [(each.dense, each.quantised) for each in asked] == [(True, False), (False, True), (False, False)]
    with pytest.raises(NoTwin, match="not quantised"):
        release.twin(RELATIONS["reference"], {"kv_cache_dtype": "fp8_e4m3"}, 9)


def test_known_bugs_are_mended_and_said_to_be_unless_that_is_left_out(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry's mends of this release; that they fit it, tests/engines shows."""
    monkeypatch.setattr(
        fit,
        "dist_of",
        lambda here, version=None: Dist(here.engine, Version(version or here.version), None),  # type: ignore[arg-type]
    )
    monkeypatch.setattr(fit, "fit", lambda dist, wanted: Fit((), ()))
    known = [toggle.pr for toggle in load_registry().all if "sglang" in toggle.mends]

    def owners(*toggles: Toggle) -> dict[int, set[str]]:
        found = target(store, mends=True).patches(toggles)
        return {number: {patch.owner for patch in each} for number, each in found.items()}

    mended = {"probe sites", *(f"toggle {number}" for number in known)}
    assert owners() == {0: mended}
    assert owners(*load_registry().select(27338, "sglang")) == {27338: {"toggle 27338"}, 0: mended}
    assert owners(*load_registry().select(known[0], "sglang")) == {0: mended}, "a mend that is asked for is no revert"
    notes = [target(store, mends=mends).notes_of(OPTIONS, target(store).installed(), OverThere()) for mends in (1, 0)]
    (told,) = [text for text in (*notes[0], *notes[1]) if "mended" in text]
    assert told.startswith("known bugs of sglang==0.5.13 are mended: 23802, 26510, 28254, 31599; `mends: false`")


def test_a_draft_by_frozen_keys_is_an_assistant_of_the_layout_that_sglang_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    foreign = SGLANG.foreign["FROZEN_KV_MTP"]
    assert draft_folder("tiny-frozen-assistant", tmp_path, foreign).parent == tmp_path / "specdebug" / "checkpoints"
    with pytest.raises(InvalidOption, match=r"draft_model: SGLang drafts so with Gemma4Assistant.* alone"):
        draft_folder("tiny-assistant", tmp_path, foreign)
