"""Find where lines that are no longer there most likely went, and how what stands there differs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from specdebug.base.errors import Where
from specdebug.patching import PatchError
from specdebug.patching.drift.dist import Dist
from specdebug.patching.source import ModuleSource

MAX_SHOWN = 12


@dataclass(frozen=True)
class Near:
    """The lines most like those that were looked for: ``where`` they begin, and their ``likeness``, 0 to 1.

    ``lines`` lack the indentation that all of them share. ``diff`` leads from the wanted lines (``-``) to them (``+``).
    """

    where: Where
    lines: tuple[str, ...]
    diff: tuple[str, ...]
    likeness: float


def nearest(dist: Dist, module: str, qualname: str, wanted: Sequence[str]) -> Near | None:
    """The best place for ``wanted`` lines: in their function, or else in their module or any function of the same name.

    They have no common indentation, and at least one of them is not blank.
    """
    plain = qualname.replace("<locals>.", "")
    source = _source(dist, module)
    if source is not None and plain in source.spans:
        return _best(source, source.spans[plain], wanted)
    places = [*([(source, source.spans[""])] if source else []), *_namesakes(dist, plain)]
    found = [near for place in places if (near := _best(*place, wanted))]
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


def _best(source: ModuleSource, spans: Sequence[tuple[int, int]], wanted: Sequence[str]) -> Near | None:
    goal = [line.strip() for line in wanted]
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2("\n".join(goal))
    best, start = 0.0, 0
    for first, last in spans:
        for at in range(first, last + 1):
            window = [line.strip() for line in source.lines[at - 1 : min(at - 1 + len(goal), last)]]
            if not window[0]:
                continue
            matcher.set_seq1("\n".join(window))
            if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
                best, start = matcher.ratio(), at
    if not start:
        return None
    lines = _flush(source.lines[start - 1 : start - 1 + len(goal)])
    changes = list(difflib.unified_diff(_flush(wanted), lines, n=0, lineterm=""))[2:]
    diff = [line for line in changes if not line.startswith("@@")]
    return Near(Where(source.path, start), tuple(lines[:MAX_SHOWN]), tuple(diff[: 2 * MAX_SHOWN]), best)


def _flush(lines: Sequence[str]) -> list[str]:
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[indent:].rstrip() for line in lines]


def _source(dist: Dist, module: str) -> ModuleSource | None:
    try:
        return dist.source(module)
    except PatchError:
        return None
