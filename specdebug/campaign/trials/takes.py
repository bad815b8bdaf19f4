"""The number of fixes that an engine which is not ours takes in ``SGLANG_DEBUG_REVERT_PR``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from specdebug.base.errors import SpecDebugError

if TYPE_CHECKING:
    from specdebug.patching.toggles import Toggle


class Takes(StrEnum):
    """SGLang itself takes one number, and ignores a list; what runs our own engine takes a set."""

    ONE = "one"
    SET = "set"

    def apart(self, toggles: Iterable[Toggle], engines: Iterable[str]) -> frozenset[frozenset[str]]:
        """Return the pairs of fixes that it cannot revert together: all, or those that edit one line of an engine."""
        from specdebug.patching.toggles import apart

        if self is Takes.SET:
            return apart(toggles, engines)
        names = (str(toggle.pr) for toggle in toggles)
        return frozenset(map(frozenset, itertools.combinations(names, 2)))

    def check(self, toggles: Sequence[Toggle], engines: Iterable[str]) -> None:
        """Raise SpecDebugError for fixes that it cannot revert together."""
        pairs = self.apart(toggles, engines)
        if not pairs:
            return
        one, other = sorted(min(pairs, key=sorted), key=int)
        if self is Takes.ONE:
            hint = "SGLANG_DEBUG_REVERT_PR takes one number, as SGLang has it; say --takes set for what takes a list"
        else:
            hint = "they edit the same line of an engine"
        raise SpecDebugError(f"{one} and {other} cannot be reverted together: {hint}")
