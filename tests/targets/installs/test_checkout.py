"""A checkout that is installed editable: what it is called, and that it is taken in under that name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdebug.targets.installs.checkout import checkout_version
from specdebug.targets.installs.release import Release, parse_release
from specdebug.targets.installs.steps import adopt
from specdebug.targets.installs.store import Installed, StoreError, find_installed

PYTHON = Path(sys.executable)


class Checkout:
    """A git repository; ``head``: its last commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q")
        self.commit()

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def commit(self) -> None:
        self.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x")

    def git(self, *words: str) -> str:
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = subprocess.run(
            ["git", "-C", str(self.folder), *words], env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "sglang")


def test_it_is_called_after_its_last_tag_and_its_commit(checkout: Checkout) -> None:
    checkout.git("tag", "v0.5.13")
    checkout.git("tag", "gateway-v9")  # of something else in the repository
    assert checkout_version(checkout.folder, "0.5.9") == "0.5.13"  # installed once, and moved since
    checkout.commit()
    checkout.commit()
    (checkout.folder / "python").mkdir()
    assert checkout_version(checkout.folder / "python", "0.5.13") == f"0.5.13.post2+g{checkout.head[:7]}"


def test_without_tags_or_git_the_metadata_stand(checkout: Checkout, tmp_path: Path) -> None:
    assert checkout_version(checkout.folder, "0.5.13+local") == f"0.5.13+g{checkout.head[:7]}"
    (tmp_path / "none").mkdir()
    outside = subprocess.run(["git", "-C", str(tmp_path / "none"), "rev-parse"], capture_output=True, check=False)
    assert outside.returncode != 0
    assert checkout_version(tmp_path / "none", "0.5.13") == "0.5.13"


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
    ],
)
def test_a_version_between_releases_keeps_its_name_and_is_run_as_the_nearest(
    version: str, like: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = taken(monkeypatch, tmp_path, "sglang", version=version)
    assert (str(there.release), there.like) == (f"sglang=={version}", like)
    assert there.taken_as.startswith(f"sglang=={version} is no release")
    assert f"it is run as sglang=={like}, and reverts and probes are held against its own files" in there.taken_as
    assert find_installed(tmp_path, Release("sglang", version)) == there


def test_a_release_that_is_known_is_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = taken(monkeypatch, tmp_path, "sglang==0.5.18", version="0.5.18")
    assert (there.like, there.taken_as) == ("0.5.18", "")


def test_what_comes_after_the_release_that_is_named_is_taken_and_anything_else_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: Checkout
) -> None:
    for version in ("0.5.13.post2.dev5+gabc1234", "0.5.14.dev57+gabc1234", "0.5.13+local"):
        assert taken(monkeypatch, tmp_path / version, "sglang==0.5.13", version=version).version == version
    for version in ("0.5.18", "0.5.18.post1", "0.5.14", "0.6.0.dev1"):
        with pytest.raises(StoreError, match=rf"has sglang {version}, not 0\.5\.13; .* install sglang --python"):
            taken(monkeypatch, tmp_path, "sglang==0.5.13", version=version)
    commit = f"g{checkout.head[:7]}"
    made = {"version": "0.0.0.dev1", "checkout": str(checkout.folder)}
    assert taken(monkeypatch, tmp_path / "none", "sglang==0.5.18", **made).version == f"0.5.18+{commit}"
    checkout.git("tag", "v0.5.18")
    checkout.commit()
    version = taken(monkeypatch, tmp_path / "tags", "sglang==0.5.18", **made).version
    assert version == f"0.5.18.post1+g{checkout.head[:7]}"
