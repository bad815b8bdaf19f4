"""Select arms to run by an expression over names, as ``pytest -k`` has it.

A word holds for an arm when it is part of one of the arm's names (see :func:`names_of`), in upper or lower case, ``-``
and ``_`` being the same. Words are joined by ``not``, ``and`` and ``or``, which bind in this order, and by parentheses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specdebug.base.errors import SpecDebugError
from specdebug.base.yamlio import one_line
from specdebug.campaign.loops.left_out import LeftOut
from specdebug.campaign.loops.replay import ArmRun

_WORD = re.compile(r"[^\s()]+")
_WANTED = "names are joined by 'and', 'or', 'not' and parentheses"
_DEEPEST = 200


@dataclass(frozen=True)
class Expression:
    """A selection that was read. Each word stands in ``tree`` as a name of as many underscores, at its column."""

    text: str
    tree: ast.expr

    def holds(self, names: Iterable[str]) -> bool:
        """Return True if an arm of these names is selected."""
        return self._holds(self.tree, [_folded(name) for name in names])

    def _holds(self, node: ast.expr, names: Sequence[str]) -> bool:
        if isinstance(node, ast.BoolOp):
            every = (self._holds(value, names) for value in node.values)
            return all(every) if isinstance(node.op, ast.And) else any(every)
        if isinstance(node, ast.UnaryOp):
            return not self._holds(node.operand, names)
        word = _folded(self.text[node.col_offset : node.end_col_offset])
        return any(word in name for name in names)


def parse_expression(text: str) -> Expression:
    """Read a selection, such as ``cache and not (zero or reverted)``. Raises SpecDebugError."""
    text = re.sub(r"\s", " ", text).strip()
    try:
        tree = ast.parse(_WORD.sub(_as_name, text), mode="eval").body
    except SyntaxError as error:
        what = _WANTED if error.msg.startswith("invalid syntax") else error.msg
        raise _wrong(text, error.offset or len(text) + 1, what) from None
    except (RecursionError, MemoryError):
        raise _wrong(text, 1, "it is nested too deep") from None
    if _depth(tree) > _DEEPEST:
        raise _wrong(text, 1, "it is nested too deep")
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not isinstance(node, ast.BoolOp | ast.UnaryOp | ast.Name):
            raise _wrong(text, node.col_offset + 1, _WANTED)
    return Expression(text, tree)


def _depth(tree: ast.expr) -> int:
    """How many operators stand in one another; found without recursion."""
    deepest, level = 0, [tree]
    while level:
        deepest += 1
        level = [child for node in level for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return deepest


def names_of(run: ArmRun | LeftOut) -> tuple[str, ...]:
    """Return the names that select an arm's run: its scenario's name and file, and the arm."""
    return run.scenario.name, run.scenario.path.stem, run.arm, f"{run.scenario.path.stem}::{run.arm}"


def _as_name(word: re.Match[str]) -> str:
    return word[0] if word[0] in ("not", "and", "or") else "_" * len(word[0])


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")


def _wrong(text: str, column: int, what: str) -> SpecDebugError:
    return SpecDebugError(f"-k '{one_line(text, 80)}': column {column}: {what}")
