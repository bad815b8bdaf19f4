"""The journal of a search: one sqlite row for every finished trial, on the disk before the trial counts.

It belongs to what is searched (its identity) in one state (``state.py``): where that has changed another begins, and
the one of before waits beside it. It belongs to one process at a time: no trial runs beside an orphan of a killed
process."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import math
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from specdebug.base.files import kind_of
from specdebug.base.redaction import redacted
from specdebug.base.trial import Outcome, Trial, TrialResult, Warm
from specdebug.base.yamlio import one_line
from specdebug.campaign.trials.state import SEVERAL, State, differences, digest_of, read_state
from specdebug.workers.machine_failure import blamed
from specdebug.workers.records import Lock, Record, RecordError

ASIDE = re.compile(r"\.[0-9a-f]{16}")  # the end of the name of a journal of another state
_MAX_FACTS = 100
"""Rows of ``facts`` that are looked at; there are four."""


@dataclass(frozen=True)
class Kept:
    """The subject of a journal; ``state`` is None where it does not say."""

    identity: str
    state: State | None
    trials: int


def facts_in(database: sqlite3.Connection) -> dict[str, str]:
    stated = database.execute("SELECT name, value FROM facts").fetchmany(_MAX_FACTS)
    return {name: value for name, value in stated if isinstance(name, str) and isinstance(value, str)}


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
    state = None
    with contextlib.suppress(ValueError, RecursionError):
        state = read_state(json.loads(facts.get("state", "null")))
    return Kept(facts.get("identity", ""), state, count)


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


def check_place(path: Path) -> None:
    """Raise RecordError if a journal could not be kept there, or is in use."""
    _locked(path).close()


def _locked(path: Path) -> Lock:
    if kind := kind_of(path):
        raise RecordError(f"the journal {path} is {kind}; name a file with --journal")
    return Lock(Record(path, "the journal", _ELSEWHERE), shared=True)


def move(path: Path, place: Path) -> None:
    """Rename a journal, with the unfinished transaction of a process that was killed: sqlite finds it by the file's
    name, and would otherwise play it back into the next. Raises OSError."""
    _unfinished(place).unlink(missing_ok=True)
    path.replace(place)
    if _unfinished(path).exists():
        _unfinished(path).rename(_unfinished(place))


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + "-journal")


FORMAT = "5"
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CONSTRAINT", "SQLITE_ERROR")
"""Names of sqlite's errors for a file that is broken, or is a database but no journal."""

_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trials (
    number INTEGER PRIMARY KEY, reverted TEXT NOT NULL, seed INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('pass', 'fail', 'untestable')), signature TEXT, seconds REAL NOT NULL,
    besides TEXT, ran TEXT, warm TEXT, processor_s REAL, digest TEXT NOT NULL,
    at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE evidence (signature TEXT PRIMARY KEY, number INTEGER NOT NULL, detail TEXT NOT NULL);
"""

_REPLACED = "replaced: "
"""In front of what was not the engine's own code, as a key of the evidence; no signature is like it."""
_ELSEWHERE = "name another with --journal"

_COLUMNS = "number, reverted, seed, outcome, signature, seconds, besides, ran, warm, processor_s, digest"


@dataclass(frozen=True)
class Earlier:
    """The journal of the same search in another state, in ``path``, of so many ``trials``: the differences in words; if
    it is gone on with (``adopted``), and else if one of the present state was there already (``back``)."""

    path: Path
    trials: int
    differs: tuple[str, ...]
    adopted: bool = False
    back: bool = False


class Journal:
    """The finished trials of one search. A context manager; leaving it frees the journal for others.

    Args:
        path: the file; it and its folder are made if need be.
        identity: what the trials belong to; ``about`` says the same for a reader.
        state: that of what is searched; None where the caller answers for that. A journal of another state is kept
            beside the new one, unless ``anyway`` goes on with it (see ``earlier``).
        fresh: begin anew; a journal with trials that is there is kept under another name (see ``kept``).

    Attributes: trials: every finished trial by its number; a result's ``detail`` is not kept with each. evidence: of
    every signature, the detail of the first trial that had it, of untestable trials under ``""``; under ``ran_key`` of
    a fix, that of the first in which its reverted lines ran. What was not the engine's own code is kept likewise (see
    :func:`not_engine_code`).

    Raises RecordError when it belongs to another search, is in use, is damaged, or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        identity: str,
        about: str,
        *,
        state: State | None = None,
        fresh: bool = False,
        anyway: bool = False,
    ) -> None:
        self.path = path
        self.kept: Path | None = None
        self.earlier: Earlier | None = None
        self._database: sqlite3.Connection | None = None
        self._lock = _locked(path)
        try:
            with self._moving():
                if fresh:
                    self.kept = set_aside(path)
                elif state is not None:
                    self.earlier = self._settle(identity, state, anyway)
            self._database = self._open(identity, about, state)
            self.trials, self.evidence = self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, trial: Trial, result: TrialResult) -> None:
        """Write down a finished trial; it is on the disk when this returns. Raises RecordError when it cannot be
        written; the journal is then as it was before."""
        key = "" if result.outcome == "untestable" else result.signature
        keys = [*([] if key is None else [key]), *map(ran_key, sorted(result.ran))]
        keys += [_REPLACED + part for part in result.not_engine_code]
        new = [each for each in keys if each not in self.evidence]
        row: tuple[object, ...] = (trial.number, json.dumps(sorted(trial.reverted)), trial.seed)
        besides = None if result.besides is None else json.dumps(result.besides)
        ran = json.dumps(sorted(result.ran)) if result.counted else None
        row += (result.outcome, result.signature, float(result.seconds), besides, ran, result.warm, result.processor_s)
        failed = f" {result.signature}" if result.signature else ""
        with self._trouble(f"; trial {trial.number} ({result.outcome}{failed}) is not in it and will be run again"):
            assert self._database is not None
            self._database.execute("BEGIN IMMEDIATE")
            marks = ", ".join("?" * (len(row) + 1))
            self._database.execute(f"INSERT INTO trials ({_COLUMNS}) VALUES ({marks})", (*row, _digest(row)))
            for each in new:
                seen = (each, trial.number, redacted(result.detail))
                self._database.execute("INSERT INTO evidence VALUES (?, ?, ?)", seen)
            self._database.execute("COMMIT")
        self.trials[trial.number] = (trial, result)
        self.evidence |= dict.fromkeys(new, result.detail)

    def close(self) -> None:
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):  # what was recorded is on the disk already
                self._database.close()
            self._database = None
        self._lock.close()

    @contextmanager
    def _moving(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RecordError(f"cannot keep the journal {self.path} under another name: {error.strerror}") from None

    def _settle(self, identity: str, state: State, anyway: bool) -> Earlier | None:
        """Put the journal of this state in its place, or with ``anyway`` the last one of another; return the other."""
        here, own = kept_in(self.path), aside_of(self.path, state)
        if here is not None and here.identity != identity:
            return None  # of another search, as is told when it is opened
        if here is None or here.state == state:
            if anyway and (last := self._last_but(own)) is not None and (other := kept_in(last)) is not None:
                self.kept = set_aside(self.path)
                move(last, self.path)
                return _earlier(self.path, other, state, adopted=True)
            if not self.path.exists() and own.exists():
                move(own, self.path)
            return None
        if anyway:
            return _earlier(self.path, here, state, adopted=True)
        aside = aside_of(self.path, here.state)
        if here.trials:
            move(self.path, aside)
        else:
            self.path.unlink()
        if back := own.exists():
            move(own, self.path)
        return _earlier(aside, here, state, back=back)

    def _last_but(self, own: Path) -> Path | None:
        """The journal of another state that was written last."""
        beside = self.path.parent.glob(f"{glob.escape(self.path.name)}.*")
        others = (path for path in beside if path != own and ASIDE.fullmatch(path.name.removeprefix(self.path.name)))
        return max(others, key=lambda path: path.stat().st_mtime_ns, default=None)

    def _open(self, identity: str, about: str, state: State | None) -> sqlite3.Connection:
        with self._trouble():
            database = sqlite3.connect(self.path, isolation_level=None, timeout=5)
            self._database = database
            database.execute("PRAGMA synchronous = FULL")
            said = {} if state is None else {"state": json.dumps(state, sort_keys=True)}
            if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                facts = {"format": FORMAT, "identity": identity, "about": redacted(about), **said}
                rows = ", ".join(f"({_quoted(name)}, {_quoted(value)})" for name, value in facts.items())
                database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} INSERT INTO facts VALUES {rows}; COMMIT;")
                return database
            found = facts_in(database)
        if found.get("format") != FORMAT or "identity" not in found:
            raise self._damaged("it is no journal of this version")
        if found["identity"] != identity:
            other = one_line(found.get("about") or "something else", 200)
            hint = "name another with --journal, or start over with --fresh"
            raise RecordError(f"the journal {self.path} is of {other}; {hint}")
        if self.earlier is not None and self.earlier.adopted:
            with self._trouble():
                database.execute("INSERT OR REPLACE INTO facts VALUES ('state', ?)", (json.dumps(SEVERAL),))
        return database

    def _read(self) -> tuple[dict[int, tuple[Trial, TrialResult]], dict[str, str]]:
        assert self._database is not None
        trials: dict[int, tuple[Trial, TrialResult]] = {}
        with self._trouble():
            check = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if check != "ok":
                raise self._damaged(one_line(str(check)))
            details = self._database.execute("SELECT signature, detail FROM evidence ORDER BY rowid").fetchall()
            for row in self._database.execute(f"SELECT {_COLUMNS} FROM trials ORDER BY number"):
                read = _trial_of(row)
                if read is None:  # sqlite sees a broken page, neither a changed digit nor another type
                    raise self._damaged(f"trial {one_line(str(row[0]), 20)} is not what was written")
                trials[read[0].number] = read
        if not all(isinstance(cell, str) for pair in details for cell in pair):
            raise self._damaged("evidence in it is no text")
        return trials, dict(details)

    @contextmanager
    def _trouble(self, consequence: str = "") -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError:
            raise self._damaged("text in it is none") from None
        except sqlite3.Error as error:
            if self._database is not None and self._database.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
            code = getattr(error, "sqlite_errorname", "")
            if code.startswith(_DAMAGE) or not code:
                raise self._damaged(str(error)) from error
            message = f"cannot write the journal {self.path}: {error}{consequence}"
            hint = "make room and run the same command again, or name another place with --journal"
            raise blamed(RecordError, f"{message}; {hint}", error) from error

    def _damaged(self, how: str) -> RecordError:
        hint = "start over with --fresh, which keeps it under another name, or name another with --journal"
        return RecordError(f"the journal {self.path} is damaged: {how}; {hint}")


def ran_key(fix: str) -> str:
    return f"ran: {fix}"


def not_engine_code(evidence: Iterable[str]) -> list[str]:
    """Return what was not the engine's own code in any trial, of a journal's evidence."""
    return [key.removeprefix(_REPLACED) for key in evidence if key.startswith(_REPLACED)]


def _earlier(path: Path, other: Kept, state: State, *, adopted: bool = False, back: bool = False) -> Earlier:
    return Earlier(path, other.trials, tuple(differences(other.state, state)), adopted, back)


def _trial_of(row: Sequence[Any]) -> tuple[Trial, TrialResult] | None:
    """Return what a row of ``trials`` says; None if it is not one that was written."""
    *cells, digest = row
    number, reverted, seed, outcome, signature, seconds, besides, ran, warm, processor_s = cells
    if not (
        type(number) is type(seed) is int
        and number >= 0
        and outcome in get_args(Outcome)
        and (signature is None or (outcome == "fail" and isinstance(signature, str)))
        and type(seconds) is float
        and 0 <= seconds < math.inf
        and (warm is None or warm in get_args(Warm))
        and (processor_s is None or type(processor_s) is float)
        and digest == _digest(cells)
    ):
        return None
    candidates, (also, run) = _texts_of(reverted), (each and _texts_of(each) for each in (besides, ran))
    if candidates is None or (also is None) != (besides is None) or (run is None) != (ran is None):
        return None
    result = TrialResult(
        outcome,
        signature,
        seconds,
        "",
        also,
        frozenset(run or ()),
        counted=run is not None,
        warm=warm,
        processor_s=processor_s,
    )
    return Trial(number, frozenset(candidates), seed), result


def _texts_of(cell: object) -> tuple[str, ...] | None:
    """Return the texts of a JSON list; None if the cell holds no such list."""
    try:
        found = json.loads(cell) if isinstance(cell, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        return None
    return tuple(found)


def _digest(row: Sequence[object]) -> str | None:
    """Return the digest of a row's cells; None for one with bytes among them, which no row that was written has."""
    if any(isinstance(cell, bytes) for cell in row):
        return None
    return hashlib.blake2b(json.dumps(list(row)).encode(), digest_size=8).hexdigest()


def _quoted(text: str) -> str:
    as_text = text.encode(errors="backslashreplace").decode()  # a command's words may be bytes that are none
    return "'" + as_text.replace("\0", "").replace("'", "''") + "'"
