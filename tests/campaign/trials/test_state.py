"""A result belongs to a state: it is another one when anything changes that the trials are known to run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specdebug.campaign.trials.commits import CommitSource
from specdebug.campaign.trials.scenario import ScenarioSource
from specdebug.campaign.trials.state import command_state, differences, own_state, packages_state, tree_state
from specdebug.scenario.library import Library


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment but the test's own."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    empty = tmp_path / "programs"
    empty.mkdir()
    for program in ("git", "sh", "bash"):
        (empty / program).symlink_to(f"/usr/bin/{program}")
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)


def committed() -> None:
    git("add", "-A")
    git("commit", "-qm", "one")


def environment(folder: Path, version: str = "1.0") -> Path:
    """What a virtual environment with one package looks like."""
    site = folder / "lib" / "python3.11" / "site-packages"
    (site / "engine").mkdir(parents=True, exist_ok=True)
    (site / "engine" / "core.py").write_text(f"version = '{version}'\n")
    (site / f"engine-{version}.dist-info").mkdir()
    (site / f"engine-{version}.dist-info" / "RECORD").write_text("engine/core.py,,\n")
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    return site


Change = Callable[[Path], object]


def _another_release(site: Path) -> None:
    (site / "engine-1.0.dist-info").rename(site / "engine-1.1.dist-info")


def _edited_where_it_lies(site: Path) -> None:
    (site / "engine" / "core.py").write_text("version = 'mended by hand'\n")


def _installed_anew(site: Path) -> None:
    os.utime(site / "engine-1.0.dist-info" / "RECORD", (1, 1))


@pytest.mark.parametrize("change", [_another_release, _edited_where_it_lies, _installed_anew])
@pytest.mark.parametrize("found", ["word", "shebang", "script", "active", "beside", "shell"])
def test_it_is_of_the_packages_of_the_interpreter_that_runs(
    change: Change, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(".venv").absolute() if found == "beside" else tmp_path / "venv"
    site = environment(place)
    python = place / "bin" / "python"
    Path("job.sh").write_text(f"#!{python}\n" if found == "shebang" else "#!/bin/sh\ntrue\n")
    if found == "script":
        Path("job.sh").write_text(f"#!/bin/sh\n. {place}/bin/activate\npytest\n")
        (place / "bin" / "activate").touch()
    if found == "active":
        monkeypatch.setenv("VIRTUAL_ENV", str(place))
    words = {"word": [str(python), "-m", "job"], "shell": ["sh", "-c", f"cd /; {python} -m job"]}
    command = words.get(found, ["./job.sh"])
    before = command_state(command, Path.cwd())
    assert command_state(command, Path.cwd()) == before
    change(site)
    assert any(str(site) in text for text in differences(before, command_state(command, Path.cwd())))


@pytest.mark.parametrize("how", ["pth", "direct_url"])
def test_a_checkout_that_is_installed_from_where_it_lies_counts(how: str, tmp_path: Path) -> None:
    site = environment(tmp_path / "venv")
    checkout = tmp_path / "check out"
    checkout.mkdir()
    (checkout / "code.py").write_text("a = 1\n")
    if how == "pth":
        (site / "engine.pth").write_text(f"import this\n{checkout}\n")
    else:
        told = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
        (site / "engine-1.0.dist-info" / "direct_url.json").write_text(json.dumps(told))
    before = packages_state(tmp_path / "venv")
    (checkout / "code.py").write_text("a = 2\n")
    assert differences(before, packages_state(tmp_path / "venv")) == [f"code in {checkout} changed"]


def _edit(top: Path) -> None:
    (top / "code.py").write_text("a = 2\n")


def _add(top: Path) -> None:
    (top / "sub" / "new").write_text("more\n")


def _commit(top: Path) -> None:
    git("commit", "-q", "--allow-empty", "-m", "two")


def _remove(top: Path) -> None:
    (top / "code.py").unlink()


@pytest.mark.parametrize("change", [_edit, _add, _commit, _remove])
def test_it_is_of_the_commit_and_of_what_is_changed_or_untracked(change: Change, tmp_path: Path) -> None:
    top = Path.cwd()
    (top / "sub").mkdir()
    (top / "code.py").write_text("a = 1\n")
    (top / ".gitignore").write_text("out/\n")
    git("init", "-q")
    committed()
    before = tree_state(top / "sub")
    (top / "out").mkdir()
    (top / "out" / "log").write_text("ignored\n")
    assert tree_state(top / "sub") == before
    change(top)
    (said,) = differences(before, tree_state(top / "sub"))
    assert said.startswith(f"working tree {top}: commit ")


def test_a_repository_within_counts(tmp_path: Path) -> None:
    git("init", "-q")
    Path("engine").mkdir()
    git("-C", "engine", "init", "-q")
    Path("engine/code.py").write_text("a = 1\n")
    before = tree_state(Path.cwd())
    Path("engine/code.py").write_text("a = 2\n")
    assert f"working tree {Path.cwd()}/engine changed" in differences(before, tree_state(Path.cwd()))


def test_without_git_the_code_in_the_folder_counts_and_what_a_job_writes_does_not() -> None:
    Path("job.py").write_text("import helper\n")
    Path("helper.py").write_text("a = 1\n")
    before = command_state(["sh", "job.py"], Path.cwd())
    Path("log.txt").write_text("a result\n")
    assert command_state(["sh", "job.py"], Path.cwd()) == before
    Path("helper.py").write_text("a = 2\n")
    assert differences(before, command_state(["sh", "job.py"], Path.cwd())) == [f"code in {Path.cwd()} changed"]


def test_a_search_over_commits_is_of_no_commit_that_is_checked_out(tmp_path: Path) -> None:
    git("init", "-q")
    Path("job.sh").write_text("#!/bin/sh\n")
    Path("job.sh").chmod(0o755)
    committed()
    git("commit", "-q", "--allow-empty", "-m", "two")
    source = CommitSource(["./job.sh"], Path.cwd(), "HEAD~1", "HEAD")
    before = source.state()
    Path("job.sh").write_text("#!/bin/sh\nexit 1\n")
    assert source.state() == before
    tool = tmp_path / "tool.sh"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    other = CommitSource([str(tool)], Path.cwd(), "HEAD~1", "HEAD")
    before = other.state()
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert str(tool) in " ".join(differences(before, other.state()))


def test_that_of_a_scenario_is_of_our_code_its_file_and_its_checkpoint(tmp_path: Path) -> None:
    shipped = Library().scenario("cache_hit")
    copy = tmp_path / "mine.yaml"
    copy.write_text(shipped.path.read_text())

    def source() -> ScenarioSource:
        return ScenarioSource(Library(), Library().scenario(copy))

    question, state = source().question, source().state()
    assert own_state().items() <= state.items()
    assert any(name.startswith("checkpoint ") for name in state)
    with copy.open("a") as file:
        file.write("\nseed: 12\n")
    assert source().question == question
    assert differences(state, source().state()) == [f"scenario {copy} changed"]
