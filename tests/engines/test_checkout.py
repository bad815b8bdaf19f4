"""A checkout of SGLang with a bug in one of its commits, beside the dependencies of an installed release."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specdebug.targets.installs.release import parse_release
from specdebug.targets.installs.store import find_installed, store_folder
from specdebug.targets.installs.trees import TREES
from tests.engines.checkout import IMPORTABLE, RELEASE, STALE, UNIMPORTABLE, make_checkout
from tests.engines.replays import ROOT, replayed

pytestmark = [pytest.mark.engines, pytest.mark.slow]

SCENARIO = "draft_positions"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("checkout") / "sglang"
    return folder, make_checkout(folder, {4: UNIMPORTABLE, 5: IMPORTABLE, 6: STALE})


def test_bisect_names_the_commit_and_leaves_no_code_behind(checkout: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, commits = checkout
    path = str(ROOT / "scenarios" / f"{SCENARIO}.yaml")
    words = ["--over", "commits", "--repo", str(folder), "--good", commits[0], "--bad", commits[-1]]
    done = subprocess.run(
        [sys.executable, "-m", "specdebug", "bisect", path, *words, "--target", RELEASE, "--json", "--jobs", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert [each["id"] for each in told["culprits"]] == [commits[6]]
    assert told["signature"] == "mismatch@draft_tree"
    left = find_installed(store_folder(None), parse_release(RELEASE)).folder / TREES
    assert not {path.name for path in left.iterdir()} & set(commits)


def test_a_commit_that_its_base_cannot_import_is_unknown(checkout: tuple[Path, list[str]]) -> None:
    folder, commits = checkout
    target = json.dumps({"engine": RELEASE, "tree": str(folder), "commit": commits[4]})
    code, arm = replayed(SCENARIO, "--arm", "fixed", "--target", target)
    assert (code, arm["verdict"]) == (125, "unknown")
    assert "cannot be imported: ModuleNotFoundError: No module named 'of_no_package'" in arm["detail"]


def test_the_files_of_a_working_tree_run_as_they_are(checkout: tuple[Path, list[str]]) -> None:
    folder, _ = checkout
    code, arm = replayed(SCENARIO, "--arm", "fixed", "--target", f"{RELEASE}@{folder}", "--no-locate")
    assert (code, arm["signature"]) == (1, "mismatch@draft_tree")
