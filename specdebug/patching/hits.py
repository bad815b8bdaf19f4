"""Counters that prove an edited line ran, and their places in the patched program.

``__specdebug_hit__(n)`` stands where an edit differs from the original. The name lives in ``builtins``: frames that
outlive a restore, and code that is marshalled to a process without this package, run on. Under ``torch.compile`` the
call is folded (``_dynamo_marked_constant``) and counts once a trace. A spawned process also counts in a file.
"""

from __future__ import annotations

import ast
import builtins
import mmap
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from specdebug.patching.source import first_line

HIT_NAME = "__specdebug_hit__"

folder: str | None = None
"""Where spawned processes count, a file each; None before there is any."""

_counts = [0]
_cells: Mapping[int, int] = {}
_shared: memoryview | None = None
_WORD = 8

_BODIES = ("body", "handlers", "orelse", "finalbody", "cases")
_CASE: type[Any] = getattr(ast, "match_case", type(None))  # Python 3.9 has none
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOK_UP = f'getattr(len.__self__, "{HIT_NAME}", abs)'  # in an expression: the counter among the builtins, if any
_Node = TypeVar("_Node", bound=ast.AST)


def new_counter() -> int:
    """Number of a fresh counter at zero."""
    _counts.append(0)
    return len(_counts) - 1


def hit(index: int) -> None:
    """Count one pass through the edit of counter ``index``."""
    _counts[index] += 1
    if _shared is not None and index in _cells:
        _shared[_cells[index]] += 1


def hits_of(index: int) -> int:
    """The passes of this process, and of those that it spawned."""
    if folder is None or _shared is not None:
        return _counts[index]
    words = (each.read_bytes()[_WORD * index : _WORD * (index + 1)] for each in Path(folder).glob("*"))
    return _counts[index] + sum(memoryview(word).cast("Q")[0] for word in words if len(word) == _WORD)


def take_hits() -> dict[int, int]:
    """The passes of this process since this was last asked, by counter; it counts them no more."""
    taken = {index: count for index, count in enumerate(_counts) if count}
    for index in taken:
        _counts[index] = 0
    return taken


def add_hits(taken: Mapping[int, int]) -> None:
    """Count what a fork of this process has taken."""
    for index, count in taken.items():
        _counts[index] += count


def cell_of(index: int) -> int:
    """The number of a counter in the process that began it all."""
    return _cells.get(index, index)


def count_in(where: str, cells: Mapping[int, int], prefix: str = "") -> None:
    """Let counters count in a new file of this process in a folder, too, each in a cell."""
    global folder, _cells, _shared
    folder, _cells = where, cells
    with tempfile.NamedTemporaryFile(dir=where, prefix=prefix, suffix=".hits", delete=False) as file:
        file.truncate(_WORD * (max(cells.values(), default=0) + 1))
        _shared = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")


hit._dynamo_marked_constant = True  # type: ignore[attr-defined]
setattr(builtins, HIT_NAME, hit)


class Lines(NamedTuple):
    """Lines ``first..last`` (inclusive) of a text; none, in front of ``first``, if ``last`` is one less."""

    first: int
    last: int


class Place(NamedTuple):
    """Where ``counter`` stands: before ``body[at]`` (or at the end of ``body``), or in ``inside``, a lambda."""

    counter: int
    line: int
    body: list[Any]
    at: int
    inside: ast.Lambda | None = None


def find_places(old: ast.Module, new: ast.Module, was: Lines, now: Lines, counter: int) -> list[Place]:
    """The places in ``new`` of the counter of the edit that turned the lines ``was`` of ``old`` into ``now``.

    Both texts are the same above an edit, so the statements that begin there correspond; bodies under equal headers are
    compared one by one. What differs only in comments, blanks or the breaking of lines has no place, and never counts.

    - A statement differs: just before it; where it was taken away, in its place.
    - The header of a function, class, ``except`` or ``case`` does: in its body, so that calls are counted.
    - Nothing but the body of a lambda does: when the lambda is called.
    """
    search = _Search(was, now, counter)
    if search.bodies(old.body, new.body, new):
        search.put(new.body, 0, new)
    return search.found


class _Search:
    def __init__(self, was: Lines, now: Lines, counter: int) -> None:
        self._was, self._now, self._counter = was, now, counter
        self.found: list[Place] = []

    def put(self, body: list[Any], at: int, owner: Any) -> None:
        line = first_line(body[at]) if at < len(body) else getattr(body[-1] if body else owner, "end_lineno", 1)
        self.found.append(Place(self._counter, line, body, at))

    def bodies(self, old: Sequence[Any], new: list[Any], owner: Any) -> bool:
        """Compare the statements (or handlers, or cases) that the edit reaches; True if only ``owner`` can count."""
        was, now = self._was, self._now
        before = sum(_span(node)[0] < was.first for node in old)
        first = after = sum(_span(node)[0] < now.first for node in new)
        pairs: list[tuple[Any, Any]] = []
        if before and after and (_span(old[before - 1])[1] >= was.first or _span(new[after - 1])[1] >= now.first):
            first -= 1
            pairs.append((old[before - 1], new[first]))
        gone = [node for node in old[before:] if _span(node)[0] <= was.last]
        come = [node for node in new[after:] if _span(node)[0] <= now.last]
        pairs += zip(gone, come)
        for at, (one, other) in enumerate(pairs, first):
            if self._differ(one, other):
                if not (isinstance(other, _SCOPES) and type(one) is type(other) and one.name == other.name):
                    return self._count_at(new, at, owner)
                self.put(other.body, 0, other)
        behind = first + len(pairs)
        if len(gone) > len(come):  # there is no room for a counter among handlers or cases
            if any(new is getattr(owner, name, None) for name in ("handlers", "cases")):
                return True
            self.put(new, behind, owner)
        return len(gone) < len(come) and self._count_at(new, behind, owner)

    def _count_at(self, body: list[Any], at: int, owner: Any) -> bool:
        node = body[at]
        inside = isinstance(node, (*_SCOPES, ast.ExceptHandler, _CASE))
        self.put(*((node.body, 0, node) if inside else (body, at, owner)))
        return False

    def _differ(self, old: Any, new: Any) -> bool:
        """Note the places inside two statements; True if they differ in more than what is inside."""
        if type(old) is not type(new):
            return True
        inner = [name for name in _BODIES if isinstance(getattr(new, name, None), list)]
        outer = ([getattr(node, each, None) for each in node._fields if each not in inner] for node in (old, new))
        lambdas = _changed_lambdas(*outer)
        if lambdas is None:
            return True
        self.found += [Place(self._counter, each.body.lineno, [], 0, each) for each in lambdas]
        # A list, since every body is to be compared, also after one that has no place.
        return True in [self.bodies(getattr(old, name), getattr(new, name), new) for name in inner]


def _changed_lambdas(old: Any, new: Any) -> list[ast.Lambda] | None:
    """The innermost lambdas of ``new`` that hold all that differs from ``old``: none if nothing does, None if they do
    not. Syntax may be nested deeper than calls can be, so only lambdas recurse."""
    found: list[ast.Lambda] = []
    work = [(old, new)]
    while work:
        one, other = work.pop()
        if type(one) is not type(other):
            return None
        if isinstance(one, ast.Lambda):
            work += zip(*((each.args.defaults, each.args.kw_defaults) for each in (one, other)))
            names = ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg")
            inner = _changed_lambdas(*([*(getattr(e.args, name) for name in names), e.body] for e in (one, other)))
            found += [other] if inner is None else inner
        elif isinstance(one, ast.AST):
            work += [(getattr(one, field, None), getattr(other, field, None)) for field in one._fields]
        elif isinstance(one, list):
            if len(one) != len(other):
                return None
            work += zip(one, other)
        elif one != other:
            return None
    return found


def _span(node: Any) -> tuple[int, int]:
    """First and last line of a statement, an ``except`` or a ``case``."""
    if isinstance(node, _CASE):
        return node.pattern.lineno, node.body[-1].end_lineno or node.pattern.lineno
    return first_line(node), node.end_lineno


def insert_counters(places: Iterable[Place]) -> None:
    """Make what runs at the places count. Every place must have been found before the first is filled."""
    for place in sorted(places, key=lambda place: -place.at):
        if place.inside is not None:  # its body becomes ``(hit(n), body)[1]``
            made: Any = _parsed(f"({_LOOK_UP}({place.counter}), 0)[1]", place.line)
            made.value.value.elts[1] = place.inside.body
            place.inside.body = made.value
            continue
        at = place.at
        while at < len(place.body) and _must_stay_first(place.body, at):
            at += 1
        call = f"try:\n    {HIT_NAME}({place.counter})\nexcept NameError:\n    pass"
        place.body.insert(at, _parsed(call, place.line))


def _must_stay_first(body: list[Any], at: int) -> bool:
    node = body[at]
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return True
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return at == 0 and is_constant and isinstance(node.value.value, str)


def _parsed(text: str, line: int) -> ast.stmt:
    statement = ast.parse(text).body[0]
    for node in ast.walk(statement):
        without_columns(node, line)
    return statement


def without_columns(node: _Node, line: int) -> _Node:
    """Give a made-up node a line but no columns, so that a traceback marks nothing under it."""
    if "lineno" in node._attributes:  # contexts such as Load are shared by the whole tree
        for name, value in (("lineno", line), ("end_lineno", line), ("col_offset", -1), ("end_col_offset", -1)):
            setattr(node, name, value)
    return node
