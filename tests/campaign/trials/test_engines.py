"""Trials on one engine after another: which there are to try, and what is put away."""

import sys
from pathlib import Path

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial
from specdebug.campaign.trials.campaign import Candidate
from specdebug.campaign.trials.engines import GOOD, EngineRange, EngineSource, commits_between, releases_between
from specdebug.scenario.library import Library
from specdebug.targets.installs import fit, trees
from specdebug.targets.installs.release import Release
from specdebug.targets.installs.store import Installed
from specdebug.targets.settings import ReleasedEngine
from tests.campaign.trials.repositories import git, make_repository


def environment(store: Path, version: str, *, done: tuple[str, ...] = ("installed",), engine: str = "sglang") -> None:
    made = Installed(store / f"{engine}-{version}-cpu", engine, version, "cpu", sys.executable, False, done=done)
    made.write()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SGLang 0.5.13, 0.5.20 and 0.5.23, the last but one half installed; of recipes 0.5.18 lies between."""
    monkeypatch.setenv("SPECDEBUG_ENGINES", str(tmp_path / "store"))
    monkeypatch.setattr(fit, "_package", lambda python, name: tmp_path / name)
    for version in ("0.5.13", "0.5.20", "0.5.23"):
        environment(tmp_path / "store", version)
    environment(tmp_path / "store", "0.5.21", done=())
    return tmp_path / "store"


def test_installed_releases_between_are_the_candidates(store: Path) -> None:
    found = releases_between(None, "sglang==0.5.13", "sglang==0.5.23")
    assert [each.id for each in found.candidates] == ["sglang==0.5.20", "sglang==0.5.23"]
    assert {name: target.release for name, target in found.targets.items()} == {
        GOOD: "sglang==0.5.13",
        "sglang==0.5.20": "sglang==0.5.20",
        "sglang==0.5.23": "sglang==0.5.23",
    }
    assert found.lacking == (Release("sglang", "0.5.18"),)


def test_what_else_holds_of_the_target_holds_of_each(store: Path) -> None:
    target = ReleasedEngine(release="sglang", mends=False, arguments=("--x",))
    found = releases_between(target, "sglang==0.5.20", "sglang")
    assert found.targets["sglang==0.5.23"] == ReleasedEngine(release="sglang==0.5.23", mends=False, arguments=("--x",))
    assert found.lacking == ()


@pytest.mark.parametrize(
    ("good", "bad", "told"),
    [
        ("sglang==0.5.13", "vllm==0.32.0", "are two engines; name two releases of one"),
        ("sglang==0.5.23", "sglang==0.5.13", "--good sglang==0.5.23 is newer than --bad sglang==0.5.13"),
        ("sglang==0.5.23", "sglang==0.5.23.0", "are the same release, sglang==0.5.23"),
        ("sglang==0.5.13", "sglang", "sglang==0.5.13"),
        ("sglang==0.5.18", "sglang==0.5.23", "--good: sglang==0.5.18 is not installed in .* specdebug engines install"),
        ("sglang==0.5.13", "sglang==0.5.99", "no recipe installs sglang==0.5.99 for cpu; there are: "),
        ("sglang==0.5.21", "sglang==0.5.23", "--good: sglang==0.5.21 in .* is not complete; go on with"),
        ("sglang==x", "sglang==0.5.23", "'x' is no version"),
        ("torch==2", "sglang==0.5.23", "no engine 'torch'"),
    ],
)
def test_what_is_no_range_of_releases(store: Path, good: str, bad: str, told: str) -> None:
    if bad == "sglang":
        assert releases_between(None, good, bad).targets[GOOD].release == told
        return
    with pytest.raises(SpecDebugError, match=told):
        releases_between(None, good, bad)


def test_releases_of_another_engine_than_the_target_s(store: Path) -> None:
    with pytest.raises(SpecDebugError, match=r"--good sglang==0\.5\.13 is no release of vllm, the engine of --target"):
        releases_between(ReleasedEngine(release="vllm"), "sglang==0.5.13", "sglang==0.5.23")


def test_commits_of_a_checkout_stand_beside_a_release(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_repository(tmp_path, monkeypatch)
    release = ReleasedEngine(release="sglang==0.5.23")
    found = commits_between(release, Path(), "HEAD~2", "HEAD")
    assert [each.label for each in found.candidates] == ["change 4", "change 5"]
    assert [target.commit for target in found.targets.values()] == git("rev-list", "--reverse", "HEAD~3..").split()
    assert {target.tree for target in found.targets.values()} == {str(tmp_path / "repo")}
    with pytest.raises(SpecDebugError, match="are the same commit"):
        commits_between(release, Path(), "HEAD", "HEAD")


def test_a_trial_runs_on_its_engine_and_what_was_laid_out_is_removed(store: Path, tmp_path: Path) -> None:
    commits = ["a" * 40, "b" * 40]
    release = ReleasedEngine(release="sglang==0.5.23")
    targets = {
        name: ReleasedEngine(release=release.release, tree=str(tmp_path), commit=commit)
        for name, commit in zip([GOOD, commits[1]], commits, strict=True)
    }
    below = store / "sglang-0.5.23-cpu" / trees.TREES
    for commit in (*commits, "other"):
        (below / commit / "sglang").mkdir(parents=True)
    source = EngineSource(
        Library(), Library().scenario("draft_positions"), EngineRange((Candidate(commits[1], "x"),), targets)
    )
    for reverted, target in ((frozenset[str](), targets[GOOD]), (frozenset({commits[1]}), targets[commits[1]])):
        scenario, toggles = source.changed(Trial(0, reverted, 1))
        assert scenario.target_of("fixed") == target
        assert toggles == ()
    source.start(Trial(0, frozenset({commits[1]}), 1))  # there is no such commit
    _, result = source.wait()
    assert result.outcome == "untestable"
    assert result.detail.endswith(f"target.commit: no commit {commits[1]} in {tmp_path}")
    source.close()
    assert [path.name for path in below.iterdir()] == ["other"]
