"""Match patches against a release by the rules that ``patching.apply`` has, down to compiling the result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdebug.base.errors import Where
from specdebug.patching import Patch, PatchError
from specdebug.patching.drift.dist import Dist
from specdebug.patching.drift.nearest import Near, nearest
from specdebug.patching.match import Placed, check_overlaps, dedent, place
from specdebug.patching.rewrite import rewrite

# How a message may end that is for the editor of the one file; a Near says more.
_HINT = re.compile("; nearest is |; known: ")


@dataclass(frozen=True)
class EditProblem:
    """An edit that cannot be made, and in one line why: ``what``.

    ``written``: the edit's place in its registry. ``near``: the release's lines that come nearest to those it names.
    """

    written: str
    what: str
    near: Near | None

    def to_dict(self) -> dict[str, Any]:
        place, lines, diff = None, None, None
        if self.near:
            place, lines, diff = str(self.near.where), list(self.near.lines), list(self.near.diff)
        return {"written": self.written, "what": self.what, "where": place, "nearest": lines, "diff": diff}


@dataclass(frozen=True)
class Fit:
    """The result for some patches: where the edits land, or what is wrong."""

    places: tuple[Where, ...]
    problems: tuple[EditProblem, ...]


def fit(dist: Dist, patches: Sequence[Patch]) -> Fit:
    """Match all edits of these patches, to be made together. Raises SpecDebugError if a file cannot be read."""
    problems: list[EditProblem] = []
    placed: dict[str, list[Placed]] = {}
    for patch in patches:
        here = placed.setdefault(patch.module, [])
        for number, edit in enumerate(patch.edits, start=len(here)):
            try:
                here.append(place(dist.source(patch.module, patch.where), patch, edit, number))
            except PatchError as error:
                near = nearest(dist, patch.module, patch.qualname, dedent(edit.match.strip("\n").split("\n"))[0])
                what = _HINT.split(error.message)[0]
                problems.append(EditProblem(str(error.where or edit.match_at), what, near))
    if not problems:
        problems = [problem for module, edits in placed.items() for problem in _together(dist, module, edits)]
    places = [Where(dist.source(name).path, one.start) for name, edits in placed.items() for one in edits]
    return Fit(tuple(places), tuple(problems))


def _together(dist: Dist, module: str, placed: list[Placed]) -> list[EditProblem]:
    source = dist.source(module)
    try:
        check_overlaps(source, placed)
        rewrite(source, placed)
    except PatchError as error:
        return [EditProblem(str(error.where or placed[0].edit.match_at), error.message, None)]
    return []
