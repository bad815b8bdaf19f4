"""Select arms to run by an expression over names, as ``pytest -k`` has it.

A word holds for an arm when it is part of one of the arm's names (see :func:`names_of`), in upper or lower case, ``-``
and ``_`` being the same. Words are joined by ``not``, ``and`` and ``or``, which bind in this order, and by parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdebug.base.errors import SpecDebugError
from specdebug.base.yamlio import one_line

if TYPE_CHECKING:
    from specdebug.campaign.loops.left_out import LeftOut
    from specdebug.campaign.loops.replay import ArmRun

_TOKEN = re.compile(r"[()]|[^\s()]+")
_BINDS = {"or": 1, "and": 2, "not": 3}


class BadExpression(SpecDebugError):
    """A selection that cannot be read."""


@dataclass(frozen=True)
class Expression:
    """A selection that was read: words and operators in the order of their evaluation."""

    text: str
    _steps: tuple[tuple[str, str], ...]

    def holds(self, names: Iterable[str]) -> bool:
        """Return True if an arm of these names is selected."""
        known = [_folded(name) for name in names]
        values: list[bool] = []
        for kind, word in self._steps:
            if kind == "word":
                values.append(any(word in name for name in known))
            elif word == "not":
                values.append(not values.pop())
            else:
                right, left = values.pop(), values.pop()
                values.append((left and right) if word == "and" else (left or right))
        return values[0]


def parse_expression(text: str) -> Expression:
    """Read a selection, such as ``cache and not (zero or reverted)``. Raises BadExpression."""
    steps: list[tuple[str, str]] = []
    waiting: list[tuple[str, int]] = []  # operators and opening parentheses, with their columns
    operand_due = True
    for word, column in _words(text):
        if operand_due:
            if word in ("not", "("):
                waiting.append((word, column))
            elif word in ("and", "or", ")"):
                raise _wrong(text, column, f"a name is expected here, not '{word}'")
            else:
                steps.append(("word", _folded(word)))
                operand_due = False
        elif word == ")":
            while waiting and waiting[-1][0] != "(":
                steps.append(("operator", waiting.pop()[0]))
            if not waiting:
                raise _wrong(text, column, "nothing opens this parenthesis")
            waiting.pop()
        elif word in ("and", "or"):
            while waiting and waiting[-1][0] != "(" and _BINDS[waiting[-1][0]] >= _BINDS[word]:
                steps.append(("operator", waiting.pop()[0]))
            waiting.append((word, column))
            operand_due = True
        else:
            raise _wrong(text, column, f"'and' or 'or' is expected here, not '{one_line(word, 40)}'")
    if operand_due:
        raise _wrong(text, len(text) + 1, "a name is expected at the end")
    while waiting:
        operator, column = waiting.pop()
        if operator == "(":
            raise _wrong(text, column, "nothing closes this parenthesis")
        steps.append(("operator", operator))
    return Expression(text, tuple(steps))


def names_of(run: ArmRun | LeftOut) -> tuple[str, ...]:
    """Return the names that select an arm's run: its scenario's name and file, and the arm."""
    return run.scenario.name, run.scenario.path.stem, run.arm, f"{run.scenario.path.stem}::{run.arm}"


def _words(text: str) -> Iterable[tuple[str, int]]:
    """Yield each word and parenthesis with its column, counted from 1."""
    for match in _TOKEN.finditer(text):
        yield match.group(), match.start() + 1


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")


def _wrong(text: str, column: int, what: str) -> BadExpression:
    return BadExpression(f"-k '{one_line(text, 80)}': column {column}: {what}")
