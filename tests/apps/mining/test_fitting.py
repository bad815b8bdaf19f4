"""Edits of a fix are fitted to a release by their words: moved, renamed, broken into other lines; or refused."""

from pathlib import Path

import pytest
from packaging.version import Version

from specdebug.apps.mining.fitting import Fitted, Unfit, fitted, renamed, words_of
from specdebug.apps.mining.fix import Fix, fix_of
from specdebug.patching.drift.dist import Dist, open_package
from tests.apps.mining.checkout import BROKEN, FIXED, checkout, commit

LINE = "return pages * page * topk"
BEFORE = "return pages * page"


@pytest.fixture
def fix(tmp_path: Path) -> Fix:
    top = checkout(tmp_path)
    return fix_of(top, commit(top, "pool.py", FIXED, "Rows need room (#101)"), lambda line: None)


def into(tmp_path: Path, fix: Fix, **modules: str) -> Fitted:
    """The fix fitted to a release of these modules."""
    package = tmp_path / "release" / "toy"
    package.mkdir(parents=True)
    for name, text in {"__init__": "", **modules}.items():
        (package / f"{name}.py").write_text(text)
    return fitted(Dist("toy", Version("1.0"), open_package(package)), fix)


def test_what_fits_stays_as_it_is(tmp_path: Path, fix: Fix) -> None:
    found = into(tmp_path, fix, pool=FIXED)
    assert (dict(found.edits), found.moved) == ({"toy.pool:room": [(LINE, BEFORE)]}, ())


def test_lines_that_break_elsewhere_are_found_by_their_words(tmp_path: Path, fix: Fix) -> None:
    broken = FIXED.replace(LINE, "return pages * page \\\n        * topk  # of every branch")
    found = into(tmp_path, fix, pool=broken)
    (target, pairs), *_ = found.edits.items()
    assert (target, pairs[0][1]) == ("toy.pool:room", BEFORE)
    assert "break anew" in found.moved[0]


def test_a_function_that_moved_to_another_module_is_found(tmp_path: Path, fix: Fix) -> None:
    found = into(tmp_path, fix, pool="from toy.sizes import room\n", sizes=FIXED)
    assert dict(found.edits) == {"toy.sizes:room": [(LINE, BEFORE)]}
    assert "toy.pool:room is toy.sizes:room" in found.moved[0]


def test_a_function_that_became_a_method_is_found(tmp_path: Path, fix: Fix) -> None:
    method = "class Pool:\n" + "".join(f"    {line}\n" if line else "\n" for line in FIXED.splitlines())
    assert list(into(tmp_path, fix, pool=method).edits) == ["toy.pool:Pool.room"]


def test_a_release_without_the_fix_is_refused_as_that(tmp_path: Path, fix: Fix) -> None:
    with pytest.raises(Unfit, match="lacks the fix"):
        into(tmp_path, fix, pool=BROKEN)


def test_a_release_without_the_code_is_refused_with_the_edit(tmp_path: Path, fix: Fix) -> None:
    with pytest.raises(Unfit, match=r"edit 1 of toy\.pool:room has no lines like it"):
        into(tmp_path, fix, pool="def room():\n    return 0\n")


def test_two_places_are_refused(tmp_path: Path, fix: Fix) -> None:
    with pytest.raises(Unfit, match="matches 2 places"):
        into(tmp_path, fix, pool="", one=FIXED, two=FIXED)


LONG = "rows = table[start : start + width * topk + room]"


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (LONG, {}),
        (LONG.replace("rows", "lines"), {"rows": "lines"}),
        (LONG.replace("start", "begin"), {"start": "begin"}),
        (LONG.replace("start : start", "begin : start"), None),  # one name stands for two
        (LONG.replace("width", "topk"), None),  # two names stand for one
        ("a = b[c : c + d * e + f]", None),  # hardly a name is the same
        (LONG.replace("*", "+"), None),
    ],
)
def test_names_may_be_renamed_where_each_stands_for_one_other_and_most_are_the_same(
    other: str, names: dict[str, str] | None
) -> None:
    assert renamed(words_of(LONG), words_of(other)) == names


def test_words_are_those_of_the_code_alone() -> None:
    text = "call(\n    'a',  # one\n    b,\n)\n"
    assert [(word.text, word.line) for word in words_of(text)] == [
        ("call", 1),
        ("(", 1),
        ('"a"', 2),
        (",", 2),
        ("b", 3),
        (")", 4),
    ]
