"""Commits are tried in worktrees that come and go; the user's own checkout is left alone."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.campaign import Candidate
from specdebug.campaign.trials.commits import CommitSource, between, commit_of, top_of
from tests.campaign.trials.repositories import commit, git, make_repository, script


@pytest.fixture(autouse=True)
def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_repository(tmp_path, monkeypatch)


def source(script: str = "cat value; exit $(($(cat value) >= 3))", **options: object) -> CommitSource:
    given = {"repo": Path(), "good": "HEAD~5", "bad": "HEAD", **options}
    return CommitSource(["bash", "-c", script], **given)  # type: ignore[arg-type]


def tried(commits: CommitSource, *positions: int) -> list[TrialResult]:
    """Results of commits by their position, -1 for the good one; then everything is put away."""
    results = []
    for number, position in enumerate(positions):
        chosen = frozenset({commits.candidates[position].id}) if position >= 0 else frozenset[str]()
        commits.start(Trial(number, chosen, 7))
        results.append(commits.wait()[1])
    commits.close()
    return results


def leftovers(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "tmp").iterdir()]


def test_each_commit_is_checked_out_elsewhere(tmp_path: Path) -> None:
    Path("value").write_text("work in progress")
    before = git("status", "--porcelain"), git("rev-parse", "HEAD"), git("reflog")
    commits = source()
    assert [candidate.label for candidate in commits.candidates] == [f"change {n}" for n in range(1, 6)]
    results = tried(commits, -1, 4, 0, 2)
    assert [result.detail for result in results] == ["0", "5", "1", "3"]
    assert [result.outcome for result in results] == ["pass", "fail", "pass", "fail"]
    assert (git("status", "--porcelain"), git("rev-parse", "HEAD"), git("reflog")) == before
    assert git("worktree", "list").count("\n") == 0
    assert leftovers(tmp_path) == []
    commits.close()


def test_a_worktree_goes_from_commit_to_commit_and_keeps_what_is_ignored() -> None:
    Path(".git/info/exclude").write_text("built\n")
    seen = "cat built 2>/dev/null; ls; touch junk; echo >>value; echo $(cat value) >>built"
    first, second, third = (result.detail.split() for result in tried(source(seen), 1, 4, 4))
    assert first == ["deep", "value"]
    assert second == ["2", "built", "deep", "value"]
    assert third[:2] == ["2", "5"]


def test_a_merge_is_one_commit() -> None:
    git("checkout", "-qb", "side", "HEAD~2")
    Path("other").write_text("x")
    commit(77)
    git("checkout", "-q", "main")
    git("merge", "-q", "-s", "ours", "-m", "merge side", "side")
    assert [candidate.label for candidate in source(good="HEAD~1").candidates] == ["merge side"]


def test_a_commit_that_does_not_build_is_untestable_and_not_built_again() -> None:
    ran = Path("../built").absolute()
    build = f"echo x >>{ran}; grep -q 3 value && {{ echo no such header; exit 1; }}; exit 0"
    results = tried(source(build=build), 2, 2, 3, 3)
    assert [result.outcome for result in results] == ["untestable", "untestable", "fail", "fail"]
    assert results[1].detail.startswith("commit ")
    assert results[1].detail.endswith("does not build: no such header")
    assert ran.read_text() == "x\n" * 2


def test_a_commit_that_cannot_be_checked_out_is_untestable() -> None:
    commits = source()
    tree = git("rev-parse", f"{commits.candidates[2].id}:value")
    Path(".git/objects", tree[:2], tree[2:]).unlink()
    broken, fine = tried(commits, 2, 1)
    assert broken.outcome == "untestable"
    assert "cannot be checked out" in broken.detail
    assert fine.outcome == "pass"


def test_the_command_runs_where_the_user_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("deep")
    (result,) = tried(CommitSource(["./tracked.sh"], Path(), "HEAD~5", "HEAD"), 1)
    assert result.detail == "2"


def test_a_script_that_is_not_in_the_repository_is_the_one_here() -> None:
    script("mine.sh", "#!/bin/bash\ncat value; exit 1\n")
    (result,) = tried(CommitSource(["./mine.sh"], Path(), "HEAD~5", "HEAD"), 1)
    assert (result.detail, result.signature) == ("2", "exit:1")
    (result,) = tried(CommitSource(["bash", "mine.sh"], Path(), "HEAD~5", "HEAD"), 1)
    assert result.detail == "2"


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import sys, tempfile; from pathlib import Path; tempfile.tempdir = sys.argv[1]\n"
        "from specdebug.campaign.trials.commits import CommitSource\n"
        "from specdebug.base.trial import Trial\n"
        "commits = CommitSource(['bash', '-c', 'kill -9 $PPID'], Path(), 'HEAD~5', 'HEAD')\n"
        "commits.start(Trial(0, frozenset(), 0)); commits.wait()"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "tmp")])
    assert ended.returncode == -signal.SIGKILL
    assert len(leftovers(tmp_path)) == 1
    assert git("worktree", "list").count("\n") == 1
    tried(source(), 1)
    assert leftovers(tmp_path) == []
    assert git("worktree", "list").count("\n") == 0


def test_links_among_the_leftovers_are_left_alone(tmp_path: Path) -> None:
    """In a temporary folder that others may write to."""
    folder = tmp_path / "theirs" / "slot-0"
    folder.mkdir(parents=True)
    (tmp_path / "tmp/specdebug-commits-999999998-a").symlink_to(tmp_path / "nowhere")
    (tmp_path / "tmp/specdebug-commits-999999999-b").symlink_to(folder.parent)
    (result,) = tried(source(), 0)
    assert result.outcome == "pass"
    assert folder.is_dir()
    assert len(leftovers(tmp_path)) == 2


def history(repo: Path, good: str, bad: str) -> tuple[Candidate, ...]:
    top = top_of(repo)
    return between(top, commit_of(top, good, "good"), commit_of(top, bad, "bad"), (good, bad))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"good": "nowhere"}, "--good nowhere: no such commit"),
        ({"bad": "--all"}, "--bad --all: no such commit"),
        ({"good": "HEAD"}, "are the same commit"),
        ({"good": "HEAD", "bad": "HEAD~5"}, "is no ancestor of --bad HEAD~5; the other way round it is"),
        ({"repo": Path("/proc")}, "/proc is in no git repository that can be used .*not a git repository"),
        ({"repo": Path("missing")}, "there is no folder missing"),
    ],
)
def test_what_is_no_history_is_said(options: dict[str, Any], words: str) -> None:
    given = {"repo": Path(), "good": "HEAD~5", "bad": "HEAD", **options}
    with pytest.raises(SpecDebugError, match=words):
        history(**given)
