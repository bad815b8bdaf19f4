"""Place an edit: find the one run of lines inside its target that says what the edit expects."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from specdebug.base.errors import Where, did_you_mean, one_line
from specdebug.patching.source import Edit, ModuleSource, Patch, PatchError, find_source, first_line

_OPENING = re.compile(r"\"\"\"|\'\'\'|\\\n")
# A comment, a string in triple quotes, a string in single ones. One that is not closed ends with the text or line.
_TOKEN = re.compile(
    r"""#[^\n]*|(\"{3}|'{3})(?:\\.|[^\\])*?(?:\1|\Z)|(["'])(?:\\.|[^\\\n])*?(?:\2|$)""", re.DOTALL | re.MULTILINE
)
_HOLE = "\0"
_MAX_SHOWN = 12


@dataclass(frozen=True)
class Placed:
    """An edit that fits: lines ``start..stop`` (from 1, inclusive) of the module become ``lines``.

    ``index``: of its hit counter. ``offset``: blank lines dropped at the top of the replacement's text.
    """

    patch: Patch
    edit: Edit
    start: int
    stop: int
    lines: tuple[str, ...]
    offset: int
    index: int

    @property
    def name(self) -> str:
        """The edit as errors name it."""
        number = self.patch.edits.index(self.edit) + 1
        return f"{self.patch.owner}, edit {number} of {len(self.patch.edits)} in {self.patch.target}"


@dataclass(frozen=True)
class Near:
    """The lines most like those that were looked for: ``where`` they begin, and their ``likeness``, 0 to 1.

    ``lines`` lack the indentation that all of them share. ``diff`` leads from the wanted lines (``-``) to them (``+``).
    """

    where: Where
    lines: tuple[str, ...]
    diff: tuple[str, ...]
    likeness: float


def place(source: ModuleSource, patch: Patch, edit: Edit, index: int) -> Placed:
    """Match one edit against its module's original text.

    Raises PatchError if the target does not exist, or the text matches no place or several.
    """
    spans = source.spans.get(patch.plain_name)
    if spans is None:
        hint = did_you_mean(patch.plain_name, filter(None, source.spans))
        raise PatchError(f"{patch.owner}: {source.path} has no '{patch.qualname}'{hint}", patch.where)
    wanted, _ = dedent(_full_lines(edit.match)[0])
    if not wanted:
        raise PatchError(f"{patch.owner}: the text to match is empty", edit.match_at)
    starts = sorted({start for first, last in spans for start in range(first, last - len(wanted) + 2)})
    likely = [start for start in starts if source.lines[start - 1].strip() == wanted[0].strip()]
    found = [start for start in likely if dedent(source.lines[start - 1 : start - 1 + len(wanted)])[0] == wanted]
    if len(found) != 1:
        raise PatchError(_misfit(source, patch, edit, closest(source, spans, wanted), found), edit.match_at)
    start, stop = found[0], found[0] + len(wanted) - 1
    lines = _replacement(source, start, stop, edit)
    if lines is None:
        raise PatchError(f"{patch.owner}: the replacement equals the match", edit.replacement_at)
    return Placed(patch, edit, start, stop, tuple(lines), _full_lines(edit.replacement)[1], index)


def _misfit(source: ModuleSource, patch: Patch, edit: Edit, near: Near | None, found: list[int]) -> str:
    number = patch.edits.index(edit) + 1
    text = f"{patch.owner}: edit {number} of {len(patch.edits)} matches {len(found)} places in {patch.target}"
    if found:
        places = ", ".join(str(line) for line in found[:8])
        first = one_line(source.lines[found[0] - 1], 80)
        text += f": lines {places} of {source.path}, `{first}`; add a line of context"
    elif near is not None:
        text += f"; nearest is {near.where}: `{one_line(near.lines[0], 80)}`"
    return text


def closest(source: ModuleSource, spans: Sequence[tuple[int, int]], wanted: Sequence[str]) -> Near | None:
    """The lines inside some spans that are most like ``wanted``, of which one at least is not blank."""
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
    lines = dedent(source.lines[start - 1 : start - 1 + len(goal)])[0]
    changes = list(difflib.unified_diff(dedent(wanted)[0], lines, n=0, lineterm=""))[2:]
    diff = [line for line in changes if not line.startswith("@@")]
    return Near(Where(source.path, start), tuple(lines[:_MAX_SHOWN]), tuple(diff[: 2 * _MAX_SHOWN]), best)


def _replacement(source: ModuleSource, start: int, stop: int, edit: Edit) -> list[str] | None:
    """The lines to put in, with the indentation of those they replace; None if they are the same.

    What is inside a string literal of several lines is no indentation: it stays as it is written, to the last blank. A
    literal that the match has, too, is context, and stays as it is in the source.
    """
    above = "".join(line + "\n" for line in source.lines[: start - 1])
    theirs, originals = _without_literals(above, "\n".join(source.lines[start - 1 : stop]))
    _, known = _without_literals(above, "\n".join(_full_lines(edit.match)[0]))
    text, literals = _without_literals(above, "\n".join(_full_lines(edit.replacement)[0]))
    own, indent = dedent(theirs.split("\n"))
    code, _ = dedent(text.split("\n") if text else [])
    same = dict(zip(known, originals)) if len(known) == len(originals) else {}
    literals = [same.get(literal, literal) for literal in literals]
    if code == own and literals == originals:
        return None
    filled, made = iter(literals), "\n".join(indent + line if line else "" for line in code)
    lines = re.sub(_HOLE, lambda hole: next(filled, hole[0]), made).split("\n") if code else []
    if not any(map(_is_code, lines)) and _whole_statements(source, start, stop):
        lines.append(indent + "pass")
    return lines


def _without_literals(above: str, text: str) -> tuple[str, list[str]]:
    """``text``, which follows ``above``, with a hole for each string literal of several lines in it; and those."""
    literals: list[str] = []

    def hole(found: re.Match[str]) -> str:
        if found.start() < len(above) or "\n" not in found[0]:
            return found[0]
        literals.append(found[0])
        return _HOLE

    return (_TOKEN.sub(hole, above + text)[len(above) :] if _OPENING.search(text) else text), literals


def _whole_statements(source: ModuleSource, start: int, stop: int) -> bool:
    """Return True if the code in these lines is one or more complete statements of one body."""
    code = [number for number in range(start, stop + 1) if _is_code(source.lines[number - 1])]
    fields = ("body", "orelse", "finalbody")
    for body in (getattr(node, field, None) for node in ast.walk(source.tree) for field in fields if code):
        if isinstance(body, list):
            inside = [one for one in body if first_line(one) >= code[0] and (one.end_lineno or 0) <= code[-1]]
            if inside and first_line(inside[0]) == code[0] and inside[-1].end_lineno == code[-1]:
                return True
    return False


def _is_code(line: str) -> bool:
    """Return True if a line says anything but a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def dedent(lines: Sequence[str]) -> tuple[list[str], str]:
    """Lines without common indentation and trailing blanks, and that indentation. Blank lines have none."""
    stripped = [line.rstrip() for line in lines]
    indents = [line[: len(line) - len(line.lstrip())] for line in stripped if line]
    common = min(indents, key=len, default="")
    while not all(indent.startswith(common) for indent in indents):
        common = common[:-1]
    return [line[len(common) :] for line in stripped], common


def _full_lines(text: str) -> tuple[list[str], int]:
    """Lines without the blank ones at both ends, and how many were dropped at the top."""
    lines = re.split(r"\r\n|\r|\n", text)
    full = [number for number, line in enumerate(lines) if line.strip()]
    return (lines[full[0] : full[-1] + 1], full[0]) if full else ([], 0)


def check_overlaps(source: ModuleSource, placed: list[Placed]) -> None:
    """Raise PatchError, which names both, if two edits claim a line between them."""
    ordered = sorted(placed, key=lambda one: (one.start, one.index))
    for first, second in zip(ordered, ordered[1:]):
        if second.start > first.stop:
            continue
        late, early = (first, second) if first.index > second.index else (second, first)
        if late.edit == early.edit and late.patch == early.patch:
            raise PatchError(f"{late.patch.owner} is already applied", late.edit.match_at)
        lines = f"{source.path}:{max(first.start, second.start)}"
        message = f"{late.name} changes the same lines as {early.name} ({lines}); choose one of them"
        raise PatchError(message, late.edit.match_at)


def shared_target(one: Sequence[Patch], other: Sequence[Patch], *, here: bool) -> str | None:
    """Return the target in which a patch of each claims the same line; None if there is none.

    ``here``: they are for the source that is installed, where every line has its place. Else two edits of one target
    count that have a line of text in common: more than claim one, and no fewer.
    """
    for first, second in product(one, other):
        outer, inner = sorted((first.plain_name, second.plain_name), key=len)
        if first.module != second.module or (outer and not f"{inner}.".startswith(f"{outer}.")):
            continue
        texts = [[{line.strip() for line in e.match.splitlines()} - {""} for e in p.edits] for p in (first, second)]
        if any(a & b for a, b in product(*texts)) and (not here or _claim_one(first, second)):
            return max(first.target, second.target, key=len)
    return None


def _claim_one(one: Patch, other: Patch) -> bool:
    try:
        source = find_source(one.module, one.where)
        ours, theirs = ([place(source, patch, edit, 0) for edit in patch.edits] for patch in (one, other))
    except PatchError:  # one does not fit at all, as is told where it is applied
        return False
    return any(a.start <= b.stop and b.start <= a.stop for a, b in product(ours, theirs))
