"""match: exactly one place, modulo indentation, and helpful words otherwise."""

from __future__ import annotations

import pytest

from specdebug.base.errors import Where
from specdebug.patching import Patch, PatchError
from specdebug.patching.match import Placed, check_overlaps, dedent, place
from specdebug.patching.source import ModuleSource

TEXT = '''\
import os

@decorated(
    1,
)
def top(a):
    """Doc."""
    b = a
    if b:
        c = 1

        d = 2
    return b


class Box:
    limit = 3

    @property
    def size(self):
        return 1

    @size.setter
    def size(self, value):
        self.value = value

    def outer(self):
        def inner():
            x = 1
            return x

        x = 1
        return inner
'''
SOURCE = ModuleSource("mod", "mod.py", TEXT)


def placed(target: str, match: str, replacement: str = "pass") -> Placed:
    patch = Patch.of("toggle 1", f"mod:{target}", (match, replacement))
    return place(SOURCE, patch, patch.edits[0], 0)


def refused(target: str, match: str, replacement: str = "pass") -> str:
    with pytest.raises(PatchError) as error:
        placed(target, match, replacement)
    return str(error.value)


@pytest.mark.parametrize(
    ("target", "match", "lines"),
    [
        ("top", "b = a", (8, 8)),
        ("top", "    b = a   \n\n", (8, 8)),
        ("top", "if b:\n    c = 1\n\n    d = 2", (9, 12)),
        ("top", "\n\n  if b:\n      c = 1\n  \n      d = 2\n", (9, 12)),
        ("top", "        d = 2\n    return b", (12, 13)),
        ("top", "@decorated(\n    1,\n)\ndef top(a):", (3, 6)),
        ("Box", "limit = 3", (17, 17)),
        ("Box.size", "self.value = value", (25, 25)),
        ("Box.size", "return 1", (21, 21)),
        ("Box.outer.<locals>.inner", "x = 1", (29, 29)),
        ("Box.outer.inner", "x = 1", (29, 29)),
        ("", "import os", (1, 1)),
        ("Box.outer", "    x = 1\n    return x", (29, 30)),
    ],
)
def test_finds_the_one_place(target, match, lines):
    found = placed(target, match)
    assert (found.start, found.stop) == lines


def test_replacement_takes_the_indentation_of_what_it_replaces():
    found = placed("top", "c = 1\n\nd = 2", "  e = 1\n  if e:\n\n      f = 2\n")
    assert found.lines == ("        e = 1", "        if e:", "", "            f = 2")


def test_leading_blank_lines_of_a_replacement_are_counted():
    assert placed("top", "b = a", "\n\nb = 1").offset == 2


@pytest.mark.parametrize(
    ("target", "match", "lines"),
    [
        ("top", "if b:\n    c = 1\n\n    d = 2", ("    pass",)),
        ("top", "c = 1", ("        pass",)),
        ("top", "@decorated(\n    1,\n)", ()),
        ("top", "    1,", ()),
        ("Box.size", "def size(self, value):\n    self.value = value", ()),
    ],
)
def test_deleting_whole_statements_leaves_a_pass(target, match, lines):
    assert placed(target, match, "").lines == lines


def test_a_comment_in_place_of_a_statement_gets_a_pass():
    assert placed("top", "c = 1", "# gone").lines == ("        # gone", "        pass")


def test_no_place_names_the_nearest_line():
    assert refused("top", "b = aa") == (
        "<patch>: toggle 1: edit 1 of 1 matches 0 places in mod:top; nearest is mod.py:8: `b = a`"
    )
    assert "nearest is mod.py:9" in refused("top", "if b:\n    c = 7\n\n    d = 2")
    assert "matches 0 places" in refused("top", "limit = 3"), "the text is outside the target"
    assert "matches 0 places" in refused("top", "if b:\nc = 1"), "relative indentation counts"


def test_several_places_are_listed():
    assert "matches 2 places in mod:Box.outer: lines 29, 32 of mod.py, `x = 1`" in refused("Box.outer", "x = 1")


def test_unknown_target_names_the_nearest():
    assert refused("Box.siez", "x") == "<patch>: toggle 1: mod.py has no 'Box.siez'; did you mean 'Box.size'?"


def test_useless_edits_are_refused():
    assert "text to match is empty" in refused("top", " \n\n")
    assert "replacement equals the match" in refused("top", "b = a", "    b = a\n")


def test_overlap_names_both():
    first = placed("top", "b = a\nif b:\n    c = 1")
    patch = Patch.of("toggle 2", "mod:top", ("if b:", "if a:"))
    second = place(SOURCE, patch, patch.edits[0], 1)
    with pytest.raises(PatchError) as error:
        check_overlaps(SOURCE, [second, first])
    for part in ("toggle 1", "toggle 2", "mod.py:9", "choose one"):
        assert part in str(error.value)
    with pytest.raises(PatchError, match="toggle 2 is already applied"):
        check_overlaps(SOURCE, [second, place(SOURCE, patch, patch.edits[0], 2)])
    check_overlaps(SOURCE, [placed("top", "b = a"), second])


def test_place_in_the_toggle_file_is_the_matchs():
    patch = Patch.of("toggle 1", "mod:top", ("nothing", ""))
    edit = type(patch.edits[0])("1#1", "nothing", "", Where("t.yaml", 7), Where("t.yaml", 9))
    with pytest.raises(PatchError) as error:
        place(SOURCE, Patch("toggle 1", "mod", "top", (edit,)), edit, 0)
    assert error.value.where == Where("t.yaml", 7)


def test_dedent_keeps_relative_indentation_and_mixed_tabs():
    assert dedent(["\tx", "\t\ty", "", "\t  z"]) == (["x", "\ty", "", "  z"], "\t")
    assert dedent(["  x", "\ty"]) == (["  x", "\ty"], "")
