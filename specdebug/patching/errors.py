"""The one error of this room."""

from __future__ import annotations

from specdebug.errors import ContentError


class PatchError(ContentError):
    """A patch does not fit: its module, function or text is missing, ambiguous, taken, or would not run.

    Raised before anything has been changed. ``where`` is the edit's place in the toggle file.
    """
