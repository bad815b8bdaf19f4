"""Patches that claim a line between them are told before any is applied."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specdebug.patching import Patch
from specdebug.patching.overlap import shared_target

SOURCE = """\
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
    (tmp_path / "overlapped.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    for first, second in ((one, other), (other, one)):
        assert (shared_target(first, second, here=here) is not None) is together
    assert "overlapped" not in sys.modules


def test_lines_that_read_alike_are_told_apart_where_the_source_is_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "overlapped.py").write_text(SOURCE)
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
