"""Probes in a process under ``specdebug run``: calls that patches of ``probes/sites/`` add to a package. What they find
is told at once. Of a tensor on a GPU they wait for its values, and while a graph is captured they look at nothing."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdebug.patching.hook.child import Telling

NAME = "__specdebug_probes__"
"""The builtin by which added calls find their probes."""


class AddedProbes:
    """The probes by kind. ``rules``: glob of sites, mode and kinds; of those that cover a call the last decides."""

    def __init__(self, told: Telling, rules: Sequence[Sequence[Any]]) -> None:
        self._told = told
        self._rules = rules
        self._reached: dict[str, int] = {}
        self._found: dict[str, int] = {}

    def nan(self, value: Any, site: str) -> None:
        self._check("nan", site, value, lambda each: each != each, lambda tensor: tensor.isnan())

    def inf(self, value: Any, site: str) -> None:
        self._check("inf", site, value, math.isinf, lambda tensor: tensor.isinf())

    def oob(self, value: Any, low: float, high: float, site: str) -> None:
        """Values must lie in [low, high)."""
        outside = lambda tensor: (tensor < low) | (tensor >= high)  # noqa: E731
        self._check("oob", site, value, lambda each: not low <= each < high, outside)

    def page_aligned(self, value: Any, page_size: int, site: str) -> None:
        self._check(
            "page_aligned", site, value, lambda each: bool(each % page_size), lambda tensor: tensor % page_size != 0
        )

    def _check(
        self, kind: str, site: str, value: Any, bad: Callable[[Any], bool], bad_in: Callable[[Any], Any]
    ) -> None:
        modes = [mode for glob, mode, kinds in self._rules if kind in kinds and fnmatchcase(site, glob)]
        if not modes or modes[-1] == "off" or _capturing():
            return
        if hasattr(value, "isnan") and hasattr(value, "flatten"):
            flat = value.flatten()
            found = flat[bad_in(flat)]
            wrong = [int(found.numel()), found[:1].tolist()]
        else:
            every = [each for each in _numbers(value) if bad(each)]
            wrong = [len(every), every[:1]]
        name = f"{kind}@{site}"
        reached = self._reached[name] = self._reached.get(name, 0) + 1
        if not reached & (reached - 1):  # the first and each that doubles what is known: a call may come very often
            self._told.write(reached=name, times=reached)
        if wrong[0]:
            before = self._found.get(name, 0)
            found = self._found[name] = before + wrong[0]
            if not before or found.bit_length() > before.bit_length():
                self._told.write(finding=name, bad=found, first=repr(wrong[1][0]))
            if modes[-1] == "assert":
                raise AssertionError(f"async probe {kind}@{site} [{wrong[0]} bad, first {wrong[1][0]!r}]")


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, (int, float)):
        yield value
        return
    for each in value:
        yield from _numbers(each)


def _capturing() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and bool(torch.cuda.is_current_stream_capturing())
