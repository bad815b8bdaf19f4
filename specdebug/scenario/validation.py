"""All that is wrong with scenario files, found without running them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from specdebug.base.errors import ContentError, SpecDebugError, Where
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library

T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``line`` and ``column`` count from 1; 0 means that it is about the file as a whole."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{Where(self.file, self.line, self.column)}: {self.message}"


@dataclass(frozen=True)
class Validated:
    """A file that was checked: the scenario, None if it cannot be run, and what is wrong with it or its probe packs."""

    file: str
    scenario: Scenario | None
    problems: tuple[Problem, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        arms = [] if self.scenario is None else list(self.scenario.arms)
        problems = [asdict(problem) for problem in self.problems]
        return {"file": self.file, "ok": not problems, "arms": arms, "problems": problems}


def validate(library: Library, name: str) -> Validated:
    """Check a scenario by file or shipped name, and the packs that it names. Never raises for what it says."""
    scenario, wrong = _tried(name, lambda: library.scenario(name))
    if scenario is None:
        return Validated(name, None, wrong)
    packs = dict.fromkeys(pack for arm in scenario.arms for pack in scenario.probes_of(arm))
    found = [problem for pack in packs for problem in _tried(name, partial(library.checked_pack, pack))[1]]
    return Validated(str(scenario.path), None if found else scenario, tuple(found))


def _tried(name: str, make: Callable[[], T]) -> tuple[T | None, tuple[Problem, ...]]:
    try:
        return make(), ()
    except ContentError as error:
        found = [(problem.where or Where(name), problem.message) for problem in error.problems]
    except SpecDebugError as error:
        found = [(Where(name), str(error))]
    return None, tuple(Problem(where.path, where.line, where.column, message) for where, message in found)
