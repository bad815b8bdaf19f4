"""The edits that take a fix out again, made from its diff: its hunks the other way round, function by function.

An edit matches the fixed lines, with as many around them as make it the only such place in its function, and puts in
what stood there before. What is made is tried: it must lead each module to the syntax tree that it had before the fix.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from specdebug.base.errors import SpecDebugError
from specdebug.patching.match import dedent, place
from specdebug.patching.rewrite import rewrite, tried
from specdebug.patching.source import ModuleSource, Patch, PatchError

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_TEST = re.compile(r"(^|[./])(tests?|conftest|test_\w+|\w+_test)(\.|$)")
_NOWHERE = "/dev/null"


@dataclass(frozen=True)
class FixedLines:
    """Lines ``start`` to ``stop`` of the fixed file (from 1, inclusive; none if ``stop`` is less) were ``before``."""

    start: int
    stop: int
    before: tuple[str, ...]


@dataclass
class FileDiff:
    """A file of a diff, by its paths before and after the fix. ``fixed``: what it says of lines after the fix."""

    was: str
    path: str
    changes: list[FixedLines] = field(default_factory=list)
    fixed: list[tuple[int, str]] = field(default_factory=list)

    def before(self, lines: Sequence[str]) -> str:
        """The text before the fix, of the lines after it."""
        lines = list(lines)
        for each in reversed(self.changes):
            lines[each.start - 1 : each.stop] = each.before
        return "\n".join(lines)


@dataclass(frozen=True)
class Reversal:
    """A fixed module, what it was ``before``, and by function the pairs of match and replacement that lead back."""

    source: ModuleSource
    before: str
    edits: dict[str, list[tuple[str, str]]]


def read_diff(text: str) -> list[FileDiff]:
    """The files of a unified diff. Raises SpecDebugError where it ends within a hunk, or holds no file."""
    files, was, old, new, at = list[FileDiff](), "", 0, 0, 0
    for line in text.splitlines():
        if old > 0 or new > 0:
            sign, rest = line[:1] or " ", line[1:]
            if sign not in " +-\\":
                break
            if sign in " +":
                files[-1].fixed.append((at, rest))
            if sign in "+-":
                _add(files[-1].changes, at, (rest,) if sign == "-" else (), int(sign == "+"))
            old, new, at = old - (sign in " -"), new - (sign in " +"), at + (sign in " +")
        elif line.startswith("--- "):
            was = _path(line)
        elif line.startswith("+++ "):
            files.append(FileDiff(was, _path(line)))
        elif files and (hunk := _HUNK.match(line)):
            old, new = (1 if each is None else int(each) for each in hunk.group(1, 3))
            at = int(hunk[2]) + (new == 0)
    if old > 0 or new > 0 or not files:
        raise SpecDebugError("the diff ends within a hunk" if files else "the diff holds no file; give a unified diff")
    return files


def _add(changes: list[FixedLines], at: int, before: tuple[str, ...], fixed: int) -> None:
    """Add a line to the change that ends right before it, else to a new one."""
    last = changes[-1] if changes and changes[-1].stop == at - 1 else FixedLines(at, at - 1, ())
    if changes and last is changes[-1]:
        changes.pop()
    changes.append(FixedLines(last.start, last.stop + fixed, (*last.before, *before)))


def _path(line: str) -> str:
    path = line[4:].partition("\t")[0].strip()
    return path if path == _NOWHERE else re.sub(r"^[abciow]/", "", path)


def reversals(files: Sequence[FileDiff], text_of: Callable[[str], str | None]) -> Iterator[Reversal | str]:
    """What takes a fix out of each module that it changed, and why it does not of another file, file by file.

    ``text_of``: a file of the tree with the fix, by its path; None if there is none. Raises SpecDebugError where the
    tree is not what the diff says or no edit can be made.
    """
    for file in files:
        path = file.was if file.path == _NOWHERE else file.path
        module = _module(path, text_of)
        if not path.endswith(".py") or module is None or is_test(module):
            yield f"{path}: no module of a package" if module is None else f"{path}: a test"
        elif _NOWHERE in (file.path, file.was):
            yield f"{path}: the fix {'removed' if file.path == _NOWHERE else 'added'} it whole"
        else:
            source = _source(file, module, text_of(path))
            before = file.before(source.lines)
            edits = _edits(source, file, before)
            yield Reversal(source, before, edits) if edits else f"{path}: no code changes"


def is_test(module: str) -> bool:
    """Return True if a module is a test by its name, or lies among tests."""
    return _TEST.search(module) is not None


def check(made: Sequence[Reversal], patches: Sequence[Patch]) -> None:
    """Raise SpecDebugError unless patches lead every module back to what it was before the fix."""
    sources = {each.source.name: each.source for each in made}
    placed, wrong = tried(patches, lambda module, where: sources[module])
    if wrong:
        raise SpecDebugError(f"the edits do not fit: {wrong[0][2].message}")
    for each in made:
        lines = rewrite(each.source, [one for source, one in placed if source is each.source]).lines
        if _meaning("\n".join(lines)) != _meaning(each.before):
            raise SpecDebugError(f"{each.source.path}: no edits of whole lines lead back to what it was before the fix")


def _module(path: str, text_of: Callable[[str], str | None]) -> str | None:
    """The name of the module at a path: from the outermost package around it, of which folders between are parts
    without an ``__init__.py``, too."""
    *folders, name = path.removesuffix(".py").split("/")
    for top in range(len(folders)):
        inner = [*folders[top:], *([] if name == "__init__" else [name])]
        if all(map(str.isidentifier, inner)) and text_of("/".join([*folders[: top + 1], "__init__.py"])) is not None:
            return ".".join(inner)
    return None


def _source(file: FileDiff, module: str, text: str | None) -> ModuleSource:
    if text is None:
        raise SpecDebugError(f"{file.path}: the tree has no such file; name the tree that has the fix with --repo")
    source = ModuleSource(module, file.path, text)
    for number, line in file.fixed:
        if number > len(source.lines) or source.lines[number - 1].rstrip() != line.rstrip():
            raise SpecDebugError(f"{file.path}:{number}: the tree is not what the diff says; it must have the fix")
    try:
        _ = source.tree
    except (SyntaxError, ValueError) as error:
        raise SpecDebugError(f"{file.path} does not parse: {error}") from None
    return source


def _edits(source: ModuleSource, file: FileDiff, before: str) -> dict[str, list[tuple[str, str]]]:
    """Match and replacement of each edit, by function. Raises SpecDebugError."""
    fixed = _meaning(source.text)
    changes = [each for each in file.changes if _meaning(FileDiff("", "", [each]).before(source.lines)) != fixed]
    grow = cache(lambda change: _grown(source, change))
    while True:
        grown = [grow(each) for each in changes]
        clash = next((n for n in range(len(grown) - 1) if grown[n + 1][1] <= grown[n][2]), None)
        if clash is None:
            break
        one, other = changes[clash : clash + 2]
        between = tuple(source.lines[one.stop : other.start - 1])
        changes[clash : clash + 2] = [FixedLines(one.start, other.stop, (*one.before, *between, *other.before))]
    edits = defaultdict[str, list[tuple[str, str]]](list)
    for change, (target, first, last) in zip(changes, grown):
        edits[target].append(_texts(source, change, first, last))
    return dict(edits)


def _grown(source: ModuleSource, change: FixedLines) -> tuple[str, int, int]:
    """The innermost function or class with a place for a change, and the lines to match there."""
    at = max(change.stop, 1)  # of lines that the fix deleted, the one above
    inside = (min(change.start, at), at)
    full = [number for number, line in enumerate(source.lines, start=1) if line.strip()] or [1]
    spans = [
        (last - first, name, max(first, full[0]), min(last, full[-1]))
        for name, each in source.spans.items()
        for first, last in each
    ]
    for _, name, first, last in sorted(spans):
        if first <= inside[0] and inside[1] <= last:
            for start, stop in _wider(*inside, first, last):
                if _leads_back(source, name, change, start, stop):
                    return name, start, stop
    raise SpecDebugError(f"{source.path}:{change.start}: no edit of whole lines takes this change back")


def _wider(start: int, stop: int, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Lines around others, more and more of them, above and below by turns."""
    above = True
    while True:
        yield start, stop
        if start == first and stop == last:
            return
        up = (above and start > first) or stop == last
        start, stop, above = (start - 1, stop, False) if up else (start, stop + 1, True)


def _leads_back(source: ModuleSource, target: str, change: FixedLines, start: int, stop: int) -> bool:
    """Return True if these lines are unique in their target, and become what they were."""
    lines = source.lines[start - 1 : stop]
    if not lines or not lines[0].strip() or not lines[-1].strip():
        return False
    wanted, spans = dedent(lines)[0], source.spans[target]
    places = {at for first, last in spans for at in range(first, last - len(lines) + 2)}
    likely = [at for at in places if source.lines[at - 1].strip() == lines[0].strip()]
    if sum(dedent(source.lines[at - 1 : at - 1 + len(lines)])[0] == wanted for at in likely) != 1:
        return False
    match, replacement = _texts(source, change, start, stop)
    patch = Patch.of("the reversal", f"{source.name}:{target}" if target else source.name, (match, replacement))
    try:
        made = place(source, patch, patch.edits[0], 0).lines
    except PatchError:
        return False
    was = (*source.lines[start - 1 : change.start - 1], *change.before, *source.lines[change.stop : stop])
    code = [line.rstrip() for line in made if line.strip()]
    return code[: len(code) - (len(code) == 1 and code[0].strip() == "pass" and not replacement)] == [
        line.rstrip() for line in was if line.strip()
    ]


def _texts(source: ModuleSource, change: FixedLines, start: int, stop: int) -> tuple[str, str]:
    """The match and the replacement of lines around a change, flush left."""
    was = (*source.lines[start - 1 : change.start - 1], *change.before, *source.lines[change.stop : stop])
    return ("\n".join(dedent(source.lines[start - 1 : stop])[0]), "\n".join(dedent(was)[0]))


class _Plain(ast.NodeTransformer):
    """Takes away what says nothing: texts that stand alone, and ``pass``."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Pass(self, node: ast.Pass) -> None:
        return None


def _meaning(text: str) -> str:
    """The syntax tree as text, without docstrings and ``pass``; text that is no Python is its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.dump(_Plain().visit(ast.parse(text)))
        except (SyntaxError, ValueError):
            return text
