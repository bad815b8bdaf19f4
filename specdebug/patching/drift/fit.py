"""Match patches against a release by the rules that ``patching.apply`` has, down to compiling the result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdebug.base.errors import Where
from specdebug.patching.drift.dist import Dist
from specdebug.patching.match import Near, Placed, check_overlaps, closest, dedent, place
from specdebug.patching.rewrite import rewrite
from specdebug.patching.source import ModuleSource, Patch, PatchError

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
                near = nearest(dist, patch.module, patch.plain_name, dedent(edit.match.strip("\n").split("\n"))[0])
                what = _HINT.split(error.message)[0]
                problems.append(EditProblem(str(error.where or edit.match_at), what, near))
    for module, edits in placed.items() if not problems else ():
        source = dist.source(module)
        try:
            check_overlaps(source, edits)
            rewrite(source, edits)
        except PatchError as error:
            problems.append(EditProblem(str(error.where or edits[0].edit.match_at), error.message, None))
    places = [Where(dist.source(name).path, one.start) for name, edits in placed.items() for one in edits]
    return Fit(tuple(places), tuple(problems))


def nearest(dist: Dist, module: str, qualname: str, wanted: Sequence[str]) -> Near | None:
    """The best place for ``wanted`` lines: in their function, or else in their module or any function of the same name.

    They have no common indentation, and at least one of them is not blank. ``qualname``: without ``<locals>``.
    """
    source = _source(dist, module)
    if source is not None and qualname in source.spans:
        return closest(source, source.spans[qualname], wanted)
    places = [*([(source, source.spans[""])] if source else []), *_namesakes(dist, qualname)]
    found = [near for place in places if (near := closest(*place, wanted))]
    return max(found, key=lambda near: near.likeness, default=None)


def _namesakes(dist: Dist, qualname: str) -> list[tuple[ModuleSource, list[tuple[int, int]]]]:
    """Functions and classes of this qualified name in any module, or else of its last part."""
    last = qualname.rpartition(".")[2]
    if not last:
        return []
    modules = dist.modules_that_mention(rf"(def|class)\s+{re.escape(last)}\b".encode())
    named = [(name, source) for module in modules if (source := _source(dist, module)) for name in source.spans]
    found = [each for each in named if each[0] == qualname]
    found = found or [each for each in named if each[0].rpartition(".")[2] == last]
    return [(source, source.spans[name]) for name, source in found]


def _source(dist: Dist, module: str) -> ModuleSource | None:
    try:
        return dist.source(module)
    except PatchError:
        return None
