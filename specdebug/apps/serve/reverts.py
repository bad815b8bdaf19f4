"""Reverts in the front's process: what it has of the reverted lines is edited here, too, and counted.

The engine's process has the same reverts in place. Where both have a module, an edit runs in both, and counts in both.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from specdebug.patching import apply

if TYPE_CHECKING:
    from specdebug.patching.toggles import Toggle

Hits = Mapping[str, Mapping[str, int]]  # by fix, and by edit, how often it has run


class FrontReverts:
    """The reverts of some fixes, in force in this process until its context ends. To be made before modules of the
    front are imported: what runs at their import can be edited only then. Raises PatchError where an edit does not
    fit."""

    def __init__(self, toggles: Sequence[Toggle]) -> None:
        self._toggles = toggles
        patches = [patch for toggle in toggles for patch in toggle.patches]
        here = [patch for patch in patches if patch.module in sys.modules]
        self._applied = [apply(here, "inprocess")]
        try:
            self._applied.append(apply([patch for patch in patches if patch not in here], "import"))
        except BaseException:
            self._applied[0].restore()
            raise

    def __enter__(self) -> FrontReverts:
        return self

    def __exit__(self, *_: object) -> None:
        """Take them back."""
        for each in self._applied:
            each.restore()

    def with_engine(self, engine: Hits) -> Hits:
        """Return how often each edit has run here and in the engine, by whose own word ``engine`` is."""
        own = Counter[str]()
        for each in self._applied:
            own.update(each.hits())
        edits = {str(each.pr): [edit.id for patch in each.patches for edit in patch.edits] for each in self._toggles}
        return {
            pr: {name: own[name] + engine.get(pr, {}).get(name, 0) for name in names} for pr, names in edits.items()
        }
