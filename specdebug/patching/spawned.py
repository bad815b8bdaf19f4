"""Processes that ``multiprocessing`` spawns: they import everything anew, so the patches in force go with them.

What a new process is told first puts them in force there. It counts in a file of its own, in a folder of the first
process. One that lacks the modules, or finds other text in them, ends with the error that says so.
"""

from __future__ import annotations

import atexit
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from specdebug.patching import hits
from specdebug.patching.source import Patch

SPAWN = "multiprocessing.spawn"
_CODE = "import sys; sys.path[:] = path; from specdebug.patching.spawned import again; again(patches)"


class InForce(NamedTuple):
    """The patches of one module, and the counters of their edits, in order."""

    module: str
    patches: tuple[Patch, ...]
    counters: tuple[int, ...]


class _Again:
    """Unpickles by putting patches in force; the path of the parent is needed to find this package."""

    def __init__(self, names: Mapping[str, object]) -> None:
        self._names = names

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_CODE, self._names)


def take_along(spawn: ModuleType, in_force: Callable[[], list[InForce]]) -> None:
    """Make every process spawned from now on begin with the patches in force when it is."""
    real = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        told: dict[str, Any] = real(name)
        if patched := in_force():
            cells = [each._replace(counters=tuple(map(hits.cell_of, each.counters))) for each in patched]
            told["specdebug"] = _Again({"path": told["sys_path"], "patches": pickle.dumps((_folder(), cells))})
        return told

    spawn.get_preparation_data = get_preparation_data  # type: ignore[attr-defined]


def again(pickled: bytes) -> None:
    """Put patches in force in a new process, for good."""
    from specdebug.patching.apply import apply

    folder, patched = pickle.loads(pickled)
    cells: dict[int, int] = {}
    for module, patches, counters in patched:
        applied = apply(patches, "inprocess" if module in sys.modules else "import")
        cells.update(zip(applied.counters, counters))
    hits.count_in(folder, cells)


def _folder() -> str:
    """The folder that spawned processes count in, removed when the process that made it ends (not one of its forks)."""
    if hits.folder is None:
        hits.folder = folder = tempfile.mkdtemp(prefix="specdebug-hits-")
        maker = os.getpid()
        atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == maker else None)
    return hits.folder
