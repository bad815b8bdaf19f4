"""Journals beside each other: of a search that was started over, and of other states of what is searched."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from specdebug.campaign.trials.state import State, digest_of, read_state

ASIDE = re.compile(r"\.[0-9a-f]{16}")
"""The end of the name of a journal of another state."""
_MAX_FACTS = 100
"""Rows of ``facts`` that are looked at; there are four."""


@dataclass(frozen=True)
class Kept:
    """The subject of a journal; ``state`` is None where it does not say."""

    identity: str
    state: State | None
    trials: int


def facts_in(database: sqlite3.Connection) -> dict[str, str]:
    """Return what a journal says of itself. Raises sqlite3.Error."""
    stated = database.execute("SELECT name, value FROM facts").fetchmany(_MAX_FACTS)
    return {name: value for name, value in stated if isinstance(name, str) and isinstance(value, str)}


def state_of(facts: dict[str, str]) -> State | None:
    """Return the state that a journal states; None where it states none that can be read."""
    try:
        return read_state(json.loads(facts.get("state", "null")))
    except (ValueError, RecursionError):
        return None


def kept_in(path: Path) -> Kept | None:
    """Return what the journal in a file is of; None where there is none, or none that can be read."""
    if not path.is_file():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True)) as database:
            facts = facts_in(database)
            count = database.execute("SELECT count(*) FROM trials").fetchone()[0]
    except (sqlite3.Error, UnicodeDecodeError):
        return None
    return Kept(facts.get("identity", ""), state_of(facts), count)


def aside_of(path: Path, state: State | None) -> Path:
    """Return the place for the journal of another state than the one in ``path``."""
    return path.with_name(f"{path.name}.{digest_of(json.dumps(state, sort_keys=True))}")


def set_aside(path: Path) -> Path | None:
    """Keep a journal as the last of before, unless it is without a trial; return its new place. Raises OSError."""
    if not path.exists():
        return None
    kept = None if _unfinished(path).exists() else kept_in(path)
    if kept is not None and not kept.trials:
        path.unlink()
        return None
    place = path.with_name(path.name + ".bak")
    move(path, place)
    return place


def move(path: Path, place: Path) -> None:
    """Rename a journal, with the unfinished transaction of a process that was killed: sqlite finds it by the file's
    name, and would otherwise play it back into the next. Raises OSError."""
    _unfinished(place).unlink(missing_ok=True)
    path.replace(place)
    if _unfinished(path).exists():
        _unfinished(path).rename(_unfinished(place))


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + "-journal")
