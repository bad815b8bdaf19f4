"""Tell which patches claim a line between them, before they are applied."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from specdebug.patching.match import place
from specdebug.patching.source import find_source
from specdebug.patching.spec import Patch, PatchError


def shared_target(one: Sequence[Patch], other: Sequence[Patch], *, here: bool) -> str | None:
    """Return the target in which a patch of each claims the same line; None if there is none.

    ``here``: they are for the source that is installed, where every line has its place. Else two edits of one target
    count that have a line of text in common: more than claim one, and no fewer.
    """
    for first, second in product(one, other):
        if first.module != second.module or not _nested(first.qualname, second.qualname):
            continue
        alike = any(_lines(edit.match) & _lines(late.match) for edit, late in product(first.edits, second.edits))
        if alike and (not here or _claim_one(first, second)):
            return max(first.target, second.target, key=len)
    return None


def _nested(one: str, other: str) -> bool:
    """Return True if one of two qualified names is the other, or lies in it; an empty one is the whole module."""
    outer, inner = sorted((name.replace("<locals>.", "") for name in (one, other)), key=len)
    return not outer or f"{inner}.".startswith(f"{outer}.")


def _lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines()} - {""}


def _claim_one(one: Patch, other: Patch) -> bool:
    try:
        source = find_source(one.module, one.where)
        ours, theirs = ([place(source, patch, edit, 0) for edit in patch.edits] for patch in (one, other))
    except PatchError:  # one does not fit at all, as is told where it is applied
        return False
    return any(a.start <= b.stop and b.start <= a.stop for a, b in product(ours, theirs))
