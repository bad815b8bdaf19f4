"""Apply placed edits to a module's text and compile it, every unmodified line keeping its original number.

Lines that an edit put in are numbered inside the range it replaced, so a traceback always points at the edit's place in
the file on disk. They carry no columns: the file shows other text there, and marks under it would mislead.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Any, NamedTuple

from specdebug.base.errors import Where, one_line
from specdebug.patching.hits import Lines, find_places, insert_counters, without_columns
from specdebug.patching.match import Placed, check_overlaps, place
from specdebug.patching.source import Edit, ModuleSource, Patch, PatchError, first_line, walk_scopes

# Everything the parser and compiler raise for text that is not a program, however odd.
_COMPILE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


class FunctionKey(NamedTuple):
    """Identity of a function in a module's original text; ``line`` is its first, decorators included."""

    qualname: str
    line: int
    twin: int = 0  # counts functions of the same name on the same line, as lambdas may be

    @classmethod
    def of(cls, code: CodeType) -> FunctionKey:
        return cls(code.co_qualname, code.co_firstlineno)


@dataclass
class CodeTree:
    """Index of the functions inside a module's code object. ``outermost``: keys of those that the import itself makes.

    ``import_time``: what runs when the module is imported, in a fixed order: its own code, class bodies, their
    comprehensions. Only what runs when calls go through can be exchanged under a running program.
    """

    module: CodeType
    functions: dict[FunctionKey, CodeType] = field(default_factory=dict)
    outermost: list[FunctionKey] = field(default_factory=list)
    import_time: list[CodeType] = field(default_factory=list)

    def __post_init__(self) -> None:
        work = [(self.module, True, "")]
        while work:
            code, at_import, name = work.pop()
            inner = [const for const in code.co_consts if isinstance(const, CodeType)]
            prefix = f"{name}.<locals>." if _is_function(code) else f"{name}." if name else ""
            work.extend(
                (const, at_import and not _is_function(code), prefix + const.co_name) for const in reversed(inner)
            )
            if _is_function(code):
                key = FunctionKey(getattr(code, "co_qualname", name), code.co_firstlineno)
                while key in self.functions:
                    key = key._replace(twin=key.twin + 1)
                self.functions[key] = code
                if at_import:
                    self.outermost.append(key)
            elif at_import:
                self.import_time.append(code)

    def same_import(self, other: CodeTree) -> bool:
        """Return True if importing either module runs the same code, function bodies aside."""
        return list(map(_shell, self.import_time)) == list(map(_shell, other.import_time))

    def aligned(self, original: CodeTree) -> dict[FunctionKey, CodeType]:
        """This tree's functions under the keys of the original one; those without a counterpart are left out.

        Functions of one qualified name are paired in order when there are as many of them on both sides, else
        by their line, which only an edit of that very line can change.
        """
        mine, theirs = _by_name(self), _by_name(original)
        pairs: dict[FunctionKey, CodeType] = {}
        for name, keys in theirs.items():
            others = mine.get(name, [])
            if len(others) != len(keys):
                keys = others = [key for key in keys if key in self.functions]
            pairs.update((key, self.functions[other]) for key, other in zip(keys, others))
        return pairs


def _is_function(code: CodeType) -> bool:
    """Return True if the code is called, rather than run once as part of an import."""
    if code.co_name in _COMPREHENSIONS or code.co_name.startswith("<generic parameters of "):
        return False
    return bool(code.co_flags & inspect.CO_OPTIMIZED)


def _by_name(tree: CodeTree) -> dict[str, list[FunctionKey]]:
    names: defaultdict[str, list[FunctionKey]] = defaultdict(list)
    for key in tree.functions:
        names[key.qualname].append(key)
    return names


def _shell(code: CodeType) -> CodeType:
    """The code with the names of the functions in it instead of the functions, and without their places."""
    consts = tuple(const.co_name if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.replace(co_consts=consts, co_linetable=b"")


@dataclass(frozen=True)
class Rewritten:
    """A module with edits applied. ``spans``: of functions in ``lines``, by qualified name and original first line."""

    source: ModuleSource
    placed: tuple[Placed, ...]
    lines: list[str]
    code: CodeType
    spans: Mapping[tuple[str, int], tuple[int, int]]

    @cached_property
    def functions(self) -> CodeTree:
        return CodeTree(self.code)


@dataclass(frozen=True)
class _Text:
    """Patched text. ``origin[n]`` is line ``n``'s original number (``n`` from 1).

    ``owner[n]``: the edit it came from and its number there (from 0), None for an unmodified line.
    """

    lines: list[str]
    origin: list[int]
    owner: list[tuple[Placed, int] | None]


def rewrite(
    source: ModuleSource,
    placed: Sequence[Placed],
    kept_free: Mapping[FunctionKey, Sequence[str]] | None = None,
) -> Rewritten:
    """Build the module with ``placed`` (not overlapping) applied; with none of them, the original.

    ``kept_free``: names that functions must go on holding as free variables: a live function's closure cannot shrink.
    Raises PatchError, which names the edit at fault, if the result is not valid Python.
    """
    placed = sorted(placed, key=lambda one: one.start)
    text = _assemble(source, placed)
    # Compiling text that is someone else's must not print someone else's SyntaxWarnings a second time.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse("\n".join(text.lines), source.path)
        except _COMPILE_ERRORS as error:
            raise _broken(source, placed, text, error, remapped=False) from None
        changed = ((one.index, *_changed(source, text, one)) for one in placed)
        insert_counters([place for n, was, now in changed for place in find_places(source.tree, tree, was, now, n)])
        spans = _renumber(tree, text)
        for qualname, scope in walk_scopes(tree) if kept_free else ():
            if kept_free and (names := kept_free.get(FunctionKey(qualname, first_line(scope)))):
                # mentioned without ever being evaluated
                mention = ast.parse("if False:\n    " + ", ".join(names)).body[0]
                for node in ast.walk(mention):
                    without_columns(node, scope.end_lineno or scope.lineno)
                scope.body.append(mention)
        try:
            code = compile(tree, source.path, "exec", dont_inherit=True)
        except _COMPILE_ERRORS as error:
            raise _broken(source, placed, text, error, remapped=True) from None
    return Rewritten(source, tuple(placed), text.lines, code, spans)


def _assemble(source: ModuleSource, placed: Sequence[Placed]) -> _Text:
    rows: list[tuple[str, int, tuple[Placed, int] | None]] = []
    at = 1
    for one in placed:
        rows += [(source.lines[number - 1], number, None) for number in range(at, one.start)]
        rows += [(line, min(one.start + n, one.stop), (one, n)) for n, line in enumerate(one.lines)]
        at = one.stop + 1
    rows += [(line, number, None) for number, line in enumerate(source.lines[at - 1 :], at)]
    return _Text([line for line, _, _ in rows], [0, *(n for _, n, _ in rows)], [None, *(owner for _, _, owner in rows)])


def _changed(source: ModuleSource, text: _Text, one: Placed) -> tuple[Lines, Lines]:
    """The lines that an edit changes, in the original and in the patched text, without equal ones at both ends."""
    old, new = source.lines[one.start - 1 : one.stop], one.lines
    shorter = min(len(old), len(new))
    head = next((n for n in range(shorter) if old[n] != new[n]), shorter)
    tail = next((n for n in range(shorter - head) if old[-1 - n] != new[-1 - n]), shorter - head)
    top = text.origin.index(one.start) if new else bisect_left(text.origin, one.stop + 1)
    return Lines(one.start + head, one.stop - tail), Lines(top + head, top + len(new) - 1 - tail)


def _renumber(tree: ast.Module, text: _Text) -> dict[tuple[str, int], tuple[int, int]]:
    """Give every node its original lines; return each function's span in the patched text."""
    spans = {}
    for qualname, scope in walk_scopes(tree):
        start = first_line(scope)
        spans[qualname, text.origin[start]] = (start, scope.end_lineno or scope.lineno)
    last = len(text.origin) - 1
    positioned: list[Any] = [node for node in ast.walk(tree) if hasattr(node, "lineno")]
    for node in positioned:
        start = min(node.lineno, last)
        end = min(node.end_lineno or start, last)
        node.lineno = text.origin[start]
        node.end_lineno = max(text.origin[end], node.lineno)
        if text.owner[start]:
            node.col_offset = node.end_col_offset = -1
    return spans


def _broken(
    source: ModuleSource, placed: Sequence[Placed], text: _Text, error: BaseException, remapped: bool
) -> PatchError:
    """Find the edit to blame: the one whose line is named, else the first that does not compile alone."""
    message = one_line(error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__)
    line = (error.lineno or 0) if isinstance(error, SyntaxError) else 0
    blamed: Placed | None = None
    where: Where | None = None
    if not remapped and 0 < line < len(text.owner) and (owner := text.owner[line]):
        blamed = owner[0]
        where = blamed.edit.replacement_line(owner[1] + blamed.offset + 1)
        message += f": `{one_line(text.lines[line - 1], 80)}`"
    elif remapped:
        blamed = next((one for one in placed if one.start <= line <= one.stop), None)
    if blamed is None:
        blamed = next((one for one in placed if _fails_alone(source, one)), placed[-1] if placed else None)
    if blamed is None:
        return PatchError(f"{source.path} does not compile: {message}")
    near = f" (near {source.path}:{blamed.start})"
    return PatchError(f"{blamed.name} does not compile: {message}{near}", where or blamed.edit.replacement_line(1))


def _fails_alone(source: ModuleSource, one: Placed) -> bool:
    try:
        compile("\n".join(_assemble(source, [one]).lines), source.path, "exec", dont_inherit=True)
    except _COMPILE_ERRORS:
        return True
    return False


def tried(
    patches: Iterable[Patch], source_of: Callable[[str, Where], ModuleSource]
) -> tuple[list[tuple[ModuleSource, Placed]], list[tuple[Patch | None, Edit, PatchError]]]:
    """Match and compile edits that are to be made together, and change nothing: where they land, and those that do not
    fit (without a patch: with others), each with its error. ``source_of``: a module's text; raises PatchError."""
    placed, wrong = dict[str, list[Placed]](), list[tuple[Patch | None, Edit, PatchError]]()
    sources = dict[str, ModuleSource]()
    for patch in patches:
        here = placed.setdefault(patch.module, [])
        for number, edit in enumerate(patch.edits, start=len(here)):
            try:
                sources[patch.module] = sources.get(patch.module) or source_of(patch.module, patch.where)
                here.append(place(sources[patch.module], patch, edit, number))
            except PatchError as error:
                wrong.append((patch, edit, error))
    for module, edits in placed.items() if not wrong else ():
        try:
            check_overlaps(sources[module], edits)
            rewrite(sources[module], edits)
        except PatchError as error:
            wrong.append((None, edits[0].edit, error))
    return [(sources[module], one) for module, edits in placed.items() for one in edits], wrong
