"""Which known fixes a release has, by its lines: those of the fix are there, or those that stood there before."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name

from specdebug.base.errors import Where
from specdebug.patching.drift.check import fit, patches_for
from specdebug.patching.drift.dist import Dist
from specdebug.patching.source import Edit, Patch
from specdebug.patching.toggles import Toggle

State = Literal["lacks", "unknown", "has"]
STATES: tuple[State, ...] = ("lacks", "unknown", "has")
"""Worst first."""
_REVERTED: tuple[State, State] = ("has", "lacks")
_MENDED: tuple[State, State] = ("lacks", "has")
"""The state of a release that has the match of a patch, and of one that has its replacement. A patch of the first pair
takes a fix out, one of the second puts it in."""


@dataclass(frozen=True)
class KnownFix:
    """A fix, and whether a release has it. ``where``: the first of the lines that say so. ``scenario``: what shows the
    fix in this engine, if anything is known to. ``why``: of what is unknown."""

    pr: int
    title: str
    state: State
    where: str
    scenario: str
    why: str


def known_fixes(dist: Dist, toggles: Sequence[Toggle]) -> list[KnownFix]:
    """The fixes that have patches for this engine, those that it lacks first. Raises SpecDebugError."""
    found = [
        _judged(dist, toggle, engine)
        for toggle in toggles
        for engine in toggle.foreign
        if canonicalize_name(engine) == dist.name
    ]
    return sorted(found, key=lambda each: (STATES.index(each.state), each.pr))


def _judged(dist: Dist, toggle: Toggle, engine: str) -> KnownFix:
    shown = toggle.detected_in.get(engine)
    state, where, why = _state(dist, toggle, engine)
    return KnownFix(toggle.pr, toggle.title, state, where, "" if shown is None else shown.scenario, why)


def _state(dist: Dist, toggle: Toggle, engine: str) -> tuple[State, str, str]:
    """Say whether it has the fix, and where that is seen, or why it is not known."""
    there, gone = _MENDED if engine in toggle.mends else _REVERTED
    own = patches_for(dist, toggle)
    for patches in _of_ranges(dist, toggle, engine):
        found = fit(dist, patches)
        if not found.problems and (own is not None or any(not _adds(edit) for each in patches for edit in each.edits)):
            return there, inside(dist, found.places[0]), ""
    for patches in _of_ranges(dist, toggle, engine):
        found = fit(dist, back := _turned_round(patches))
        if back and not found.problems:
            return gone, inside(dist, found.places[0]), ""
    return "unknown", "", "neither its lines nor those before it are there as the patches have them"


def _adds(edit: Edit) -> bool:
    """Return True if an edit puts in every line that it matches: these may be there without the fix, too."""
    return set(edit.match.splitlines()) <= set(edit.replacement.splitlines())


def inside(dist: Dist, place: Where) -> str:
    """``file:line``, by the path from where the package, the wheel or the tree lies."""
    path, there = Path(place.path), dist.path.parent
    return f"{path.relative_to(there) if path.is_relative_to(there) else path}:{place.line}"


def _of_ranges(dist: Dist, toggle: Toggle, engine: str) -> Iterator[Sequence[Patch]]:
    """The patches for this release, then those for others."""
    own = patches_for(dist, toggle)
    if own is not None:
        yield own[1]
    yield from (patches for versions, patches in toggle.foreign[engine].items() if own is None or versions != own[0])


def _turned_round(patches: Sequence[Patch]) -> list[Patch]:
    """Patches that lead to the fix; without edits that put nothing in, whose place nothing shows."""
    turned = []
    for patch in patches:
        edits = [replace(edit, match=edit.replacement, replacement=edit.match) for edit in patch.edits]
        if kept := tuple(edit for edit in edits if edit.match.strip()):
            turned.append(replace(patch, edits=kept))
    return turned
