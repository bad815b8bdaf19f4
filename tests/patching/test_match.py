"""match: exactly one place, modulo indentation, helpful words otherwise; and who claims a line between them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specdebug.base.errors import Where
from specdebug.patching import Patch, PatchError
from specdebug.patching.match import Placed, dedent, place, shared_target
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


def test_useless_edits_are_refused():
    assert "text to match is empty" in refused("top", " \n\n")
    assert "replacement equals the match" in refused("top", "b = a", "    b = a\n")


def test_place_in_the_toggle_file_is_the_matchs():
    patch = Patch.of("toggle 1", "mod:top", ("nothing", ""))
    edit = type(patch.edits[0])("1#1", "nothing", "", Where("t.yaml", 7), Where("t.yaml", 9))
    with pytest.raises(PatchError) as error:
        place(SOURCE, Patch("toggle 1", "mod", "top", (edit,)), edit, 0)
    assert error.value.where == Where("t.yaml", 7)


def test_dedent_keeps_relative_indentation_and_mixed_tabs():
    assert dedent(["\tx", "\t\ty", "", "\t  z"]) == (["x", "\ty", "", "  z"], "\t")
    assert dedent(["  x", "\ty"]) == (["  x", "\ty"], "")


OVERLAPPED = """\
class Pool:
    def grow(self):
        size = 1
        other = 2
        return size

    def shrink(self):
        size = 1
        return size
"""


def patch(match: str, target: str = "overlapped:Pool.grow") -> tuple[Patch]:
    return (Patch.of("toggle 1", target, (match, "pass")),)


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (patch("size = 1"), patch("size = 1"), True),
        (patch("size = 1\nother = 2"), patch("other = 2"), True),
        (patch("    size = 1\n    other = 2"), patch("other = 2\nreturn size"), True),
        (patch("size = 1"), patch("other = 2"), False),
        (patch("size = 1"), patch("size = 1", "overlapped:Pool.shrink"), False),
        (patch("other = 2"), patch("other = 2", "overlapped:Pool"), True),
        (patch("other = 2"), patch("other = 2", "overlapped"), True),
        (patch("size = 1"), patch("size = 1", "elsewhere:Pool.grow"), False),
    ],
)
@pytest.mark.parametrize("here", [True, False])
def test_two_that_claim_one_line(
    one: tuple[Patch], other: tuple[Patch], together: bool, here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "overlapped.py").write_text(OVERLAPPED)
    monkeypatch.syspath_prepend(tmp_path)
    for first, second in ((one, other), (other, one)):
        assert (shared_target(first, second, here=here) is not None) is together
    assert "overlapped" not in sys.modules


def test_lines_that_read_alike_are_told_apart_where_the_source_is_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "overlapped.py").write_text(OVERLAPPED)
    monkeypatch.syspath_prepend(tmp_path)
    one, other = patch("def grow(self):\n    size = 1", "overlapped:Pool"), patch("size = 1", "overlapped:Pool.shrink")
    assert shared_target(one, other, here=True) is None
    alike = patch("def shrink(self):\n    size = 1", "overlapped:Pool")
    assert shared_target(one, alike, here=True) is None
    assert shared_target(one, alike, here=False) == "overlapped:Pool"


def test_a_patch_that_fits_nowhere_claims_nothing() -> None:
    assert shared_target(patch("x", "no_such_module:f"), patch("x", "no_such_module:f"), here=True) is None


REGISTRY = """
import itertools
from specdebug.patching.toggles import SelectionError, apart, load_registry
registry = load_registry()
(pair,) = apart(registry.toggles.values(), ["specdebug"])
for one, other in itertools.combinations(registry.toggles, 2):
    try:
        registry.select([one, other])
    except SelectionError as error:
        assert {str(one), str(other)} == pair, (one, other)
        print(error)
"""


def test_the_registry_s_own_pair_is_refused_and_every_other_can_be_selected() -> None:
    ended = subprocess.run([sys.executable, "-c", REGISTRY], capture_output=True, text=True, check=True)
    place = "specdebug.engine.workers.mtp:MTPDrafter._tail_tokens"
    assert ended.stdout == f"26329 and 28254 edit the same line of {place}; revert one of them\n"
