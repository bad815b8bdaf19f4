"""A fix in git is read: its number, what takes it back, what is left out."""

import subprocess
from pathlib import Path

import pytest

from specdebug.apps.mining.fix import fix_of, number_of
from specdebug.base.errors import SpecDebugError
from specdebug.base.git import ask
from tests.apps.mining.checkout import FIXED, checkout, commit


@pytest.mark.parametrize(
    ("subject", "number"),
    [
        ("Rows need room (#101)", 101),
        ("[Cherry-pick] Rows need room (#101) (#205)", 205),
        ("Merge pull request #77 from fork/branch", 77),
    ],
)
def test_a_fix_has_the_number_of_its_pull_request(subject: str, number: int) -> None:
    assert number_of(subject, "ab" * 20) == (number, True)


def test_a_fix_without_a_number_has_one_of_its_commit_that_no_pull_request_has() -> None:
    one, other = (number_of("no number here (#0)", each * 20) for each in ("ab", "cd"))
    assert one == number_of("other words", "ab" * 20)
    assert one[0] != other[0]
    assert all(1_000_000 <= number < 9_000_000 and not known for number, known in (one, other))


def test_a_commit_becomes_the_edits_that_take_it_back(tmp_path: Path) -> None:
    top = checkout(tmp_path)
    heard: list[str] = []
    fix = fix_of(top, commit(top, "pool.py", FIXED, "Rows need room (#101)"), heard.append)
    assert (fix.number, fix.title, fix.url) == (101, "Rows need room (#101)", "")
    assert fix.functions == ("toy.pool:room",)
    assert fix.made[0].edits == {"room": [("return pages * page * topk", "return pages * page")]}
    assert heard == ["taken back: toy/pool.py: 1 edit"]


def test_the_address_of_a_fix_is_that_of_its_pull_request_where_the_checkout_has_one(tmp_path: Path) -> None:
    top = checkout(tmp_path)
    subprocess.run(["git", "remote", "add", "origin", "git@github.com:owner/toy.git"], cwd=top, check=True)
    fix = fix_of(top, commit(top, "pool.py", FIXED, "Rows need room (#101)"), lambda line: None)
    assert fix.url == "https://github.com/owner/toy/pull/101"


def test_what_is_no_code_of_a_package_is_left_out_with_the_reason(tmp_path: Path) -> None:
    top = checkout(tmp_path)
    (top / "NOTES").write_text("why\n")
    (top / "tests").mkdir()
    (top / "tests" / "test_pool.py").write_text("assert True\n")
    fix = fix_of(top, commit(top, "pool.py", FIXED, "all at once"), lambda line: None)
    assert set(fix.left_out) == {"NOTES: no Python", "tests/test_pool.py: no module of a package"}


@pytest.mark.parametrize(("file", "text"), [("NOTES", "why\n"), ("pool.py", "# a comment\n" + FIXED)])
def test_a_commit_that_changes_no_code_is_refused(tmp_path: Path, file: str, text: str) -> None:
    top = checkout(tmp_path)
    commit(top, "pool.py", FIXED, "the fix")
    changed = commit(top, file, text, "words")
    with pytest.raises(SpecDebugError, match="changes no"):
        fix_of(top, changed, lambda line: None)


def test_the_first_commit_cannot_be_taken_back(tmp_path: Path) -> None:
    top = checkout(tmp_path)
    first = ask(top, "rev-list", "--max-parents=0", "HEAD")
    assert first
    with pytest.raises(SpecDebugError, match="has no parent"):
        fix_of(top, first, lambda line: None)
