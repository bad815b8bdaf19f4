"""The places of hit counters: where the patched program differs from the original, not where an edit's context begins.

Both texts are the same above an edit, so the statements that begin there correspond. The first that differs from then
on takes the counter; where it was taken away, the counter stands in its place. Bodies under equal headers are compared
one by one, so an edit that changes several branches counts in each. What differs only in comments, blanks or the
breaking of lines differs nowhere, and so never counts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from specdebug.patching.hits import HIT_NAME
from specdebug.patching.source import first_line

_BODIES = ("body", "handlers", "orelse", "finalbody", "cases")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOK_UP = f'getattr(len.__self__, "{HIT_NAME}", abs)'  # in an expression: the counter among the builtins, if any
_Node = TypeVar("_Node", bound=ast.AST)


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

    - A statement differs: just before it.
    - The header of a function, class, ``except`` or ``case`` does: in its body, so that calls are counted.
    - Nothing but the body of a lambda does: when the lambda is called.
    """
    search = _Search(was, now, counter)
    if search.bodies(old.body, new.body, new):
        search.put(new.body, 0, new)
    return search.found


def insert_counters(places: Iterable[Place]) -> None:
    """Make what runs at the places count. Every place must have been found before the first is filled."""
    for place in sorted(places, key=lambda place: -place.at):
        if place.inside is not None:
            _count_in_lambda(place.inside, place)
            continue
        at = place.at
        while at < len(place.body) and _must_stay_first(place.body, at):
            at += 1
        place.body.insert(at, _statement(place))


class _Search:
    def __init__(self, was: Lines, now: Lines, counter: int) -> None:
        self._was, self._now, self._counter = was, now, counter
        self.found: list[Place] = []

    def bodies(self, old: Sequence[Any], new: list[Any], owner: Any) -> bool:
        """Compare the statements (or handlers, or cases) that the edit reaches; True if only ``owner`` can count."""
        before, after = _above(old, self._was), _above(new, self._now)
        first, pairs = after, list[tuple[Any, Any]]()
        if before and after and (_reaches(old[before - 1], self._was) or _reaches(new[after - 1], self._now)):
            first -= 1
            pairs.append((old[before - 1], new[first]))
        gone = [node for node in old[before:] if _span(node)[0] <= self._was.last]
        come = [node for node in new[after:] if _span(node)[0] <= self._now.last]
        pairs += zip(gone, come, strict=False)
        for at, (one, other) in enumerate(pairs, first):
            if self._differ(one, other):
                if not (isinstance(other, _SCOPES) and type(one) is type(other) and one.name == other.name):
                    return self._count_at(new, at, owner)
                self.put(other.body, 0, other)
        if len(gone) > len(come):
            return self._count_gone(new, first + len(pairs), owner)
        return len(gone) < len(come) and self._count_at(new, first + len(pairs), owner)

    def put(self, body: list[Any], at: int, owner: Any) -> None:
        line = first_line(body[at]) if at < len(body) else getattr(body[-1] if body else owner, "end_lineno", 1)
        self.found.append(Place(self._counter, line, body, at))

    def _count_at(self, body: list[Any], at: int, owner: Any) -> bool:
        node = body[at]
        inside = isinstance(node, (*_SCOPES, ast.ExceptHandler, ast.match_case))
        self.put(*((node.body, 0, node) if inside else (body, at, owner)))
        return False

    def _count_gone(self, body: list[Any], at: int, owner: Any) -> bool:
        """Count where something was taken away; there is no room for it among handlers or cases."""
        if any(body is getattr(owner, name, None) for name in ("handlers", "cases")):
            return True
        self.put(body, at, owner)
        return False

    def _differ(self, old: Any, new: Any) -> bool:
        """Note the places inside two statements; True if they differ in more than what is inside."""
        if type(old) is not type(new):
            return True
        inner = [name for name in _BODIES if isinstance(getattr(new, name, None), list)]
        lambdas = changed_lambdas(
            *([getattr(node, f, None) for f in node._fields if f not in inner] for node in (old, new))
        )
        if lambdas is None:
            return True
        self.found += [Place(self._counter, each.body.lineno, [], 0, each) for each in lambdas]
        # A list, since every body is to be compared, also after one that has no place.
        return True in [self.bodies(getattr(old, name), getattr(new, name), new) for name in inner]


def changed_lambdas(old: Any, new: Any) -> list[ast.Lambda] | None:
    """The innermost lambdas of ``new`` that hold all that differs from ``old``: none if nothing does, None if they do
    not. Syntax may be nested deeper than calls can be, so only lambdas recurse."""
    found: list[ast.Lambda] = []
    work = [(old, new)]
    while work:
        one, other = work.pop()
        if type(one) is not type(other):
            return None
        if isinstance(one, ast.Lambda):
            work += zip(*((each.args.defaults, each.args.kw_defaults) for each in (one, other)), strict=True)
            inner = changed_lambdas(*([_parameters(each), each.body] for each in (one, other)))
            found += [other] if inner is None else inner
        elif isinstance(one, ast.AST):
            work += [(getattr(one, field, None), getattr(other, field, None)) for field in one._fields]
        elif isinstance(one, list):
            if len(one) != len(other):
                return None
            work += zip(one, other, strict=True)
        elif one != other:
            return None
    return found


def _parameters(function: ast.Lambda) -> list[Any]:
    args = function.args
    return [args.posonlyargs, args.args, args.vararg, args.kwonlyargs, args.kwarg]


def _above(nodes: Sequence[Any], lines: Lines) -> int:
    """How many of the statements begin above the lines."""
    return sum(_span(node)[0] < lines.first for node in nodes)


def _reaches(node: Any, lines: Lines) -> bool:
    return _span(node)[1] >= lines.first


def _span(node: Any) -> tuple[int, int]:
    """First and last line of a statement, an ``except`` or a ``case``."""
    if isinstance(node, ast.match_case):
        return node.pattern.lineno, node.body[-1].end_lineno or node.pattern.lineno
    return first_line(node), node.end_lineno


def _must_stay_first(body: list[Any], at: int) -> bool:
    node = body[at]
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return True
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return at == 0 and is_constant and isinstance(node.value.value, str)


def _count_in_lambda(function: ast.Lambda, place: Place) -> None:
    """Turn a lambda's body into ``(hit(n), body)[1]``."""
    body = function.body
    made = _parsed(f"({_LOOK_UP}({place.counter}), 0)[1]", place.line).body[0]
    assert isinstance(made, ast.Expr)
    assert isinstance(made.value, ast.Subscript)
    assert isinstance(made.value.value, ast.Tuple)
    made.value.value.elts[1] = body
    function.body = made.value


def _statement(place: Place) -> ast.stmt:
    return _parsed(f"try:\n    {HIT_NAME}({place.counter})\nexcept NameError:\n    pass", place.line).body[0]


def _parsed(text: str, line: int) -> ast.Module:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        without_columns(node, line)
    return tree


def without_columns(node: _Node, line: int) -> _Node:
    """Give a made-up node a line but no columns, so that a traceback marks nothing under it."""
    if "lineno" not in node._attributes:  # contexts such as Load are shared by the whole tree
        return node
    for name, value in (("lineno", line), ("end_lineno", line), ("col_offset", -1), ("end_col_offset", -1)):
        setattr(node, name, value)
    return node
