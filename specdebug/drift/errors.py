"""The one error of this room."""

from __future__ import annotations

from specdebug.errors import SpecDebugError


class DistError(SpecDebugError):
    """The thing to check is no wheel, sdist or source tree, is damaged, or nobody can say what it is."""
