"""Our own processes under a ``specdebug run``: its hook leaves our engine to us, and is told what became of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from specdebug.patching.hook.child import VARIABLE, Telling


def hook_wants() -> list[int]:
    """The fixes of our own engine that the run around us has reverted; none where there is no such run."""
    try:
        wanted = json.loads(Path(os.environ[VARIABLE], "wanted.json").read_bytes())
    except (KeyError, OSError, ValueError):
        return []
    own: list[int] = wanted["own"]
    return own


def tell_hits(hits: Mapping[str, Mapping[str, int]]) -> None:
    """Tell the run around us, if there is one, how often the edits of each fix ran in a worker."""
    if any(hits.values()) and os.path.isdir(folder := os.environ.get(VARIABLE, "")):
        told = Telling(folder)
        told.write(hits={edit: count for edits in hits.values() for edit, count in edits.items() if count})
