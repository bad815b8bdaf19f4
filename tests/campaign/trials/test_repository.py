"""Histories as git tells them, and why it tells none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.campaign import Candidate
from specdebug.campaign.trials.commits import between, commit_of, top_of
from tests.campaign.trials.repositories import git, make_repository, script


@pytest.fixture(autouse=True)
def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_repository(tmp_path, monkeypatch)


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


def test_a_repository_that_git_refuses_is_said_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # as in a container that mounts somebody else's
    with pytest.raises(SpecDebugError, match="dubious ownership") as caught:
        top_of(Path())
    assert "\n" not in str(caught.value)


def test_whatever_subjects_hold_a_commit_is_a_candidate() -> None:
    signs = "cat >/dev/null; echo '[GNUPG:] SIG_CREATED ' >&2; echo '-----BEGIN PGP SIGNATURE-----'"
    script("gpg", f"#!/bin/bash\n[[ $* == *--verify* ]] && {{ echo good >&2; exit; }}\n{signs}\n")
    git("config", "gpg.program", os.path.abspath("gpg"))
    git("config", "log.showSignature", "true")
    for subject in ("two\u2028lines\x0c", ""):
        git("commit", "-qS", "--allow-empty", "--allow-empty-message", "-m", subject)
    labels = [candidate.label for candidate in history(Path(), "HEAD~5", "HEAD")]
    assert labels == ["change 3", "change 4", "change 5", "two\u2028lines\x0c", ""]


def test_a_shallow_clone_that_lacks_the_commit_is_said_to_be_one(tmp_path: Path) -> None:
    first = git("rev-parse", "HEAD~5")
    git("clone", "-q", "--depth", "2", f"file://{Path.cwd()}", str(tmp_path / "shallow"))
    with pytest.raises(SpecDebugError, match=r"no such commit in \S+/shallow, which is a shallow clone; `git fetch"):
        history(tmp_path / "shallow", first, "HEAD")
    assert [candidate.label for candidate in history(tmp_path / "shallow", "HEAD~1", "HEAD")] == ["change 5"]
