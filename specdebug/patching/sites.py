"""The places of hit counters: before the first statement of an edit, or before the one it is part of."""

from __future__ import annotations

import ast
from typing import Any, TypeVar

from specdebug.patching.hits import HIT_NAME
from specdebug.patching.source import first_line

_BODIES = ("body", "handlers", "orelse", "finalbody", "cases")
_Node = TypeVar("_Node", bound=ast.AST)


def insert_counter(tree: ast.Module, line: int, index: int) -> None:
    """Make whatever runs at ``line`` of ``tree`` count; ``line`` holds code.

    - A statement begins there: count just before it (but after a docstring, which must stay first).
    - It is the header of a function or class: count in its body, so that calls are counted, not definitions.
    - It is an ``else``, ``except``, ``finally`` or ``case``: count at the top of that branch.
    - It is inside the body of a lambda: count when the lambda is called.
    - It continues some other statement: count before that statement.
    """
    place = _innermost(tree, line)
    if place is None:
        _put(tree.body, 0, line, index)
        return
    body, at = place
    node = body[at]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler | ast.match_case):
        _put(node.body, 0, line, index)
    elif _span(node)[0] == line:
        _put(body, at, line, index)
    elif branch := _branch_opened(node, line):
        _put(branch, 0, line, index)
    elif not _count_in_lambda(node, line, index):
        _put(body, at, line, index)


def enclosing_start(tree: ast.Module, line: int) -> int | None:
    """First line of the innermost statement or branch that covers ``line``, if it begins before it."""
    place = _innermost(tree, line)
    start = _span(place[0][place[1]])[0] if place else line
    return start if start < line else None


def _span(node: Any) -> tuple[int, int]:
    """First and last line of a statement, an ``except`` or a ``case``."""
    if isinstance(node, ast.match_case):
        return node.pattern.lineno, node.body[-1].end_lineno or node.pattern.lineno
    return first_line(node), node.end_lineno


def _bodies(node: Any) -> list[list[Any]]:
    return [body for name in _BODIES if isinstance(body := getattr(node, name, None), list)]


def _innermost(tree: ast.Module, line: int) -> tuple[list[Any], int] | None:
    """The body and place of the innermost statement or branch on the line; the first of several that begin on it."""
    found: tuple[list[Any], int] | None = None
    bodies = [tree.body]
    while bodies:
        nodes = [((body, at), node) for body in bodies for at, node in enumerate(body)]
        inside = [(place, node) for place, node in nodes if _span(node)[0] <= line <= _span(node)[1]]
        if not inside:
            break
        found, node = inside[0]
        if _span(node)[0] == line and isinstance(node, ast.stmt):
            break
        bodies = _bodies(node)
    return found


def _branch_opened(node: Any, line: int) -> list[Any] | None:
    """The branch of a compound statement that an ``else:`` or ``finally:`` on ``line`` opens."""
    bodies = _bodies(node)
    if not bodies or not bodies[0] or line <= _span(bodies[0][0])[0]:
        return None
    return next((body for body in bodies[1:] if body and _span(body[0])[0] >= line), None)


def _put(body: list[Any], at: int, line: int, index: int) -> None:
    while at < len(body) and _must_stay_first(body, at):
        at += 1
    body.insert(at, without_columns(ast.Expr(_call(line, index)), line))


def _must_stay_first(body: list[Any], at: int) -> bool:
    node = body[at]
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return True
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return at == 0 and is_constant and isinstance(node.value.value, str)


def _count_in_lambda(statement: ast.AST, line: int, index: int) -> bool:
    """Turn the innermost lambda body around ``line`` into ``(hit(n), body)[1]``; False if there is none."""
    lambdas = [node for node in ast.walk(statement) if isinstance(node, ast.Lambda)]
    around = [node for node in lambdas if node.body.lineno <= line <= (node.body.end_lineno or 0)]
    if not around:
        return False
    inner = around[-1]  # the walk is breadth first, so the last one is the deepest
    pair = without_columns(ast.Tuple([_call(line, index), inner.body], ast.Load()), line)
    second = without_columns(ast.Constant(1), line)
    inner.body = without_columns(ast.Subscript(pair, second, ast.Load()), line)
    return True


def _call(line: int, index: int) -> ast.Call:
    name = without_columns(ast.Name(HIT_NAME, ast.Load()), line)
    number = without_columns(ast.Constant(index), line)
    return without_columns(ast.Call(name, [number], []), line)


def without_columns(node: _Node, line: int) -> _Node:
    """Give a made-up node a line but no columns, so that a traceback marks nothing under it."""
    if "lineno" not in node._attributes:  # contexts such as Load are shared by the whole tree
        return node
    for name, value in (("lineno", line), ("end_lineno", line), ("col_offset", -1), ("end_col_offset", -1)):
        setattr(node, name, value)
    return node
