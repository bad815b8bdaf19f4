"""Whether a release has a fix is told by its lines."""

from pathlib import Path

import pytest
from packaging.version import Version

from specdebug.apps.mining.missing import known_fixes
from specdebug.base.yamlio import parse_yaml
from specdebug.patching.drift.dist import Dist, open_package
from specdebug.patching.toggles import Toggle, read_toggle
from tests.apps.mining.checkout import BROKEN, FIXED

TOGGLE = """\
pr: {pr}
title: Rows need room
family: KV cache
symptom: a row is too narrow
{more}patches:
  toy:
    "{versions}":
      - target: toy.pool:room
        edits:
          - match: {match}
            replacement: {replacement}
"""
FIX, BEFORE = "return pages * page * topk", "return pages * page"


def toggle(pr: int, versions: str = ">=1.0", match: str = FIX, replacement: str = BEFORE, more: str = "") -> Toggle:
    text = TOGGLE.format(pr=pr, versions=versions, match=match, replacement=replacement, more=more)
    return read_toggle(parse_yaml(text, "toggle"))


def release(tmp_path: Path, text: str) -> Dist:
    package = tmp_path / "toy"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "pool.py").write_text(text)
    return Dist("toy", Version("1.0"), open_package(package))


@pytest.mark.parametrize(
    ("text", "state", "where"),
    [
        (FIXED, "has", "toy/pool.py:3"),
        (BROKEN, "lacks", "toy/pool.py:3"),
        ("def room():\n    return 0\n", "unknown", ""),
    ],
)
def test_the_lines_of_a_fix_or_those_before_it_say_whether_it_is_there(
    tmp_path: Path, text: str, state: str, where: str
) -> None:
    (found,) = known_fixes(release(tmp_path, text), [toggle(1)])
    assert (found.state, found.where, bool(found.why)) == (state, where, state == "unknown")


def test_patches_for_other_versions_say_it_where_none_are_for_this_one(tmp_path: Path) -> None:
    (found,) = known_fixes(release(tmp_path, FIXED), [toggle(1, versions=">=2.0")])
    assert found.state == "has"


def test_lines_that_a_patch_keeps_do_not_say_it_of_another_version(tmp_path: Path) -> None:
    dist = release(tmp_path, FIXED)
    adding = [toggle(1, versions, replacement=f'"{FIX}\\n{FIX}"') for versions in (">=2.0", ">=1.0")]
    assert [known_fixes(dist, [each])[0].state for each in adding] == ["unknown", "has"]


def test_a_patch_that_puts_a_fix_in_says_the_opposite(tmp_path: Path) -> None:
    mending = toggle(1, match=BEFORE, replacement=FIX, more="mends: [toy]\n")
    assert [each.state for each in known_fixes(release(tmp_path, BROKEN), [mending])] == ["lacks"]


def test_what_is_lacking_comes_first_and_other_engines_do_not_count(tmp_path: Path) -> None:
    gone = toggle(3, match="return pages * page + topk", replacement="return pages * page")
    text = TOGGLE.format(pr=4, versions=">=1", match="a", replacement="b", more="")
    other = read_toggle(parse_yaml(text.replace("toy", "tea"), "toggle"))
    shown = toggle(2, match="pages = (tokens + page - 1) // page", replacement="pages = 1")
    found = known_fixes(release(tmp_path, BROKEN), [shown, gone, other])
    assert [(each.pr, each.state) for each in found] == [(3, "lacks"), (2, "has")]
