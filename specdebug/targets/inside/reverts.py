"""Fixes reverted in an engine's process, by the patches that the harness found to fit. A process that another of the
engine's spawned began with those in force there (``patching/spawned.py``); the first one puts them in force itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdebug.base.errors import Where
from specdebug.patching import Applied, Edit, Patch, apply, hits, spawned
from specdebug.targets.inside.words import say, tell


def revert(fixes: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]] = ()) -> Callable[[], None]:
    """Revert fixes, and put ``others``' patches in force that are no fix's, as are those of number 0; returns what
    tells how often each edit of a fix has run in this process. Raises PatchError."""
    patches = [_patch(each) for each in (*others, *(patch for fix in fixes for patch in fix["patches"]))]
    in_force: list[Applied] = spawned.carried or _applied(patches)
    numbered = [fix for fix in fixes if fix["pr"]]
    owners = {edit.id: str(fix["pr"]) for fix in numbered for each in fix["patches"] for edit in _patch(each).edits}
    if numbered:
        say(f"reverted here: {', '.join(str(fix['pr']) for fix in numbered)}")

    def tell_hits(*_: object) -> None:
        told: dict[str, dict[str, int]] = {}
        for applied in in_force:
            for edit, count in applied.own_hits().items():
                if edit in owners:
                    told.setdefault(owners[edit], {})[edit] = count
        if told:
            tell(pid=os.getpid(), hits=told)

    hits.on_first = tell_hits  # at once: the next thing that happens may be the engine's death
    tell_hits()
    return tell_hits


def _applied(patches: Sequence[Patch]) -> list[Applied]:
    """Put patches in force, in modules that are imported and in those that are not."""
    there = [patch for patch in patches if patch.module in sys.modules]
    rest = [patch for patch in patches if patch.module not in sys.modules]
    return [apply(each, mode) for each, mode in ((there, "inprocess"), (rest, "import")) if each]  # type: ignore[arg-type]


def _patch(plain: Mapping[str, Any]) -> Patch:
    """A patch out of plain data."""
    edits = tuple(
        Edit(**{**each, **{place: Where(**each[place]) for place in ("match_at", "replacement_at")}})
        for each in plain["edits"]
    )
    return Patch(**{**plain, "edits": edits, "where": Where(**plain["where"])})
