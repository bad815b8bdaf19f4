"""Place an edit: find the one run of lines inside its target that says what the edit expects."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass
from itertools import pairwise

from specdebug.base.errors import did_you_mean
from specdebug.base.yamlio import one_line
from specdebug.patching.source import ModuleSource, first_line
from specdebug.patching.spec import Edit, Patch, PatchError

_OPENING = re.compile(r"\"\"\"|\'\'\'|\\\n")
# A comment, a string in triple quotes, a string in single ones. One that is not closed ends with the text or line.
_TOKEN = re.compile(
    r"""#[^\n]*|(\"{3}|'{3})(?:\\.|[^\\])*?(?:\1|\Z)|(["'])(?:\\.|[^\\\n])*?(?:\2|$)""", re.DOTALL | re.MULTILINE
)
_HOLE = "\0"


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


def place(source: ModuleSource, patch: Patch, edit: Edit, index: int) -> Placed:
    """Match one edit against its module's original text.

    Raises PatchError if the target does not exist, or the text matches no place or several.
    """
    qualname = patch.qualname.replace("<locals>.", "")
    spans = source.spans.get(qualname)
    if spans is None:
        hint = did_you_mean(qualname, filter(None, source.spans))
        raise PatchError(f"{patch.owner}: {source.path} has no '{patch.qualname}'{hint}", patch.where)
    wanted, _ = dedent(_full_lines(edit.match)[0])
    if not wanted:
        raise PatchError(f"{patch.owner}: the text to match is empty", edit.match_at)
    found = _find(source, spans, wanted)
    if len(found) != 1:
        raise PatchError(_misfit(source, patch, edit, spans, wanted, found), edit.match_at)
    start, stop = found[0], found[0] + len(wanted) - 1
    lines = _replacement(source, start, stop, edit)
    if lines is None:
        raise PatchError(f"{patch.owner}: the replacement equals the match", edit.replacement_at)
    return Placed(patch, edit, start, stop, tuple(lines), _full_lines(edit.replacement)[1], index)


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
    same = dict(zip(known, originals, strict=True)) if len(known) == len(originals) else {}
    literals = [same.get(literal, literal) for literal in literals]
    if code == own and literals == originals:
        return None
    filled, made = iter(literals), "\n".join(indent + line if line else "" for line in code)
    lines = re.sub(_HOLE, lambda hole: next(filled, hole[0]), made).split("\n") if code else []
    if not any(is_code(line) for line in lines) and _whole_statements(source, start, stop):
        lines.append(indent + "pass")
    return lines


def _without_literals(above: str, text: str) -> tuple[str, list[str]]:
    """``text``, which follows ``above``, with a hole for each string literal of several lines in it; and those."""
    if not _OPENING.search(text):
        return text, []
    literals: list[str] = []

    def hole(found: re.Match[str]) -> str:
        if found.start() < len(above) or "\n" not in found[0]:
            return found[0]
        literals.append(found[0])
        return _HOLE

    return _TOKEN.sub(hole, above + text)[len(above) :], literals


def check_overlaps(source: ModuleSource, placed: list[Placed]) -> None:
    """Raise PatchError, which names both, if two edits claim a line between them."""
    ordered = sorted(placed, key=lambda one: (one.start, one.index))
    for first, second in pairwise(ordered):
        if second.start <= first.stop:
            late, early = (first, second) if first.index > second.index else (second, first)
            if late.edit == early.edit and late.patch == early.patch:
                raise PatchError(f"{late.patch.owner} is already applied", late.edit.match_at)
            lines = f"{source.path}:{max(first.start, second.start)}"
            message = f"{late.name} changes the same lines as {early.name} ({lines}); choose one of them"
            raise PatchError(message, late.edit.match_at)


def dedent(lines: list[str]) -> tuple[list[str], str]:
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


def is_code(line: str) -> bool:
    """Return True if a line says anything but a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _find(source: ModuleSource, spans: list[tuple[int, int]], wanted: list[str]) -> list[int]:
    """First lines of every place inside the spans that reads as ``wanted``."""
    size, head = len(wanted), wanted[0].strip()
    starts = {start for first, last in spans for start in range(first, last - size + 2)}
    likely = [start for start in sorted(starts) if source.lines[start - 1].strip() == head]
    return [start for start in likely if dedent(source.lines[start - 1 : start - 1 + size])[0] == wanted]


def _misfit(
    source: ModuleSource, patch: Patch, edit: Edit, spans: list[tuple[int, int]], wanted: list[str], found: list[int]
) -> str:
    number = patch.edits.index(edit) + 1
    text = f"{patch.owner}: edit {number} of {len(patch.edits)} matches {len(found)} places in {patch.target}"
    if found:
        places = ", ".join(str(line) for line in found[:8])
        first = one_line(source.lines[found[0] - 1], 80)
        return f"{text}: lines {places} of {source.path}, `{first}`; add a line of context"
    nearest = _nearest(source, spans, wanted)
    if nearest is None:
        return text
    return f"{text}; nearest is {source.path}:{nearest}: `{one_line(source.lines[nearest - 1], 80)}`"


def _nearest(source: ModuleSource, spans: list[tuple[int, int]], wanted: list[str]) -> int | None:
    """The line where the text most likely stood: most equal lines, then the most alike first line."""
    best: tuple[float, int] | None = None
    goal = {line.strip() for line in wanted if line.strip()}
    head = next(line.strip() for line in wanted if line.strip())
    for first, last in spans:
        stripped = [source.lines[number - 1].strip() for number in range(first, last + 1)]
        for at, line in enumerate(stripped):
            if not line:
                continue
            equal = sum(below in goal for below in stripped[at : at + len(wanted)] if below)
            alike = difflib.SequenceMatcher(None, head[:200], line[:200]).ratio()
            if best is None or equal + alike > best[0]:
                best = (equal + alike, first + at)
    return best[1] if best else None


def _whole_statements(source: ModuleSource, start: int, stop: int) -> bool:
    """Return True if the code in these lines is one or more complete statements of one body."""
    code = [number for number in range(start, stop + 1) if is_code(source.lines[number - 1])]
    if not code:
        return False
    fields = ("body", "orelse", "finalbody")
    for body in (getattr(node, field, None) for node in ast.walk(source.tree) for field in fields):
        if isinstance(body, list):
            inside = [one for one in body if first_line(one) >= code[0] and (one.end_lineno or 0) <= code[-1]]
            if inside and first_line(inside[0]) == code[0] and inside[-1].end_lineno == code[-1]:
                return True
    return False
