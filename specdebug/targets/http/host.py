"""How a server's failure is told: by its process and its log where they are known, else by what it said last."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from specdebug.logs.hits import Strength
from specdebug.logs.naming import name_of
from specdebug.logs.scan import LogReader, Scan
from specdebug.targets.http.checked import BadAnswer
from specdebug.targets.http.client import Declined, Silent
from specdebug.targets.serving import Lost, SessionFailed

MAX_WORDS = 80
_NO_SITE = re.compile(r"[^\w.#]+")


class Host(Protocol):
    """Who knows a server's process."""

    def status(self) -> int | None:
        """Its exit status; None while it runs. One that is about to end is waited for, a moment."""

    def scan(self) -> Scan:
        """All that its log says since the run began."""

    def findings(self) -> Sequence[tuple[str, str]]:
        """Failures that its log tells of: the signature, and the line."""

    def hits(self) -> Mapping[str, Mapping[str, int]]:
        """By reverted fix, how often each of its edits has run; empty where its log does not tell."""

    def reached(self) -> Mapping[str, int]:
        """By probe site, how often it was passed; empty where its log does not tell."""

    def new_injections(self) -> Sequence[Mapping[str, Any]]:
        """Return what its log newly tells of faults: ``ledger`` is the event, the rest its fields."""

    def lost(self) -> Sequence[Lost]:
        """The parts of ours that do not fit the engine, by its own words."""

    def not_engine_code(self) -> Sequence[str]:
        """The parts of a run that are not the engine's own code, by its own words: stand-ins, and lacks."""

    def new_problems(self) -> Sequence[str]:
        """Laws of memory pools that its log newly says are broken, each ``law: what``."""

    def said(self, words: str) -> str:
        """The last line of its log that holds some words; empty where none does."""

    @property
    def log_path(self) -> str: ...

    def release(self, sound: bool) -> None:
        """The run is over; ``sound``: nothing was found."""


def failure_of(error: Exception, host: Host | None, url: str, rid: str = "") -> SessionFailed:
    """What became of a server of which a call failed."""
    about = f"request {rid}: " if rid else ""
    status = None if host is None else host.status()
    if host is not None and status is not None:
        log = host.scan()
        kind, site = split(name_of(log, status))
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        words = "" if log.main is None else f": {log.main.text}"
        return SessionFailed(f"{about}the server ended ({how}){words}; its log is {host.log_path}", site, kind)
    told = said_in(str(error)) or (None if host is None else _main(host.scan(), Strength.EXCEPTION))
    if told is not None:
        kind, site = split(told)
        return SessionFailed(f"{about}{error}", site, kind)
    if isinstance(error, Silent):
        return SessionFailed(f"{about}{error}, of {url}", "", "hang")
    site = "http.connection"
    if isinstance(error, Declined | BadAnswer):
        site = f"http.{error.status}" if isinstance(error, Declined) else "http.answer"
    return SessionFailed(f"{about}{error}, of {url}", site)


def split(signature: str) -> tuple[str, str]:
    """Kind and site of a signature. What a log names by words, as ``assert:WORDS@PLACE``, ``error:TYPE:WORDS@PLACE`` or
    ``exit:1``, is a failed assertion of the server's at these words, or an error at its type and place."""
    head, _, place = signature.partition("@")
    kind, colon, words = head.partition(":")
    if kind in ("hang", "oom"):
        return kind, "" if kind == "hang" else place
    if not colon or kind == "crash":
        return head, place
    if kind == "error":
        words = ".".join(part for part in (kind, words.partition(":")[0], place) if part)
    elif kind != "assert":
        words = head.replace(":", ".")
    site = _NO_SITE.sub("-", words).strip("-")
    return "assert" if kind == "assert" else "error", f"server.{site[:MAX_WORDS]}"


def said_in(text: str) -> str | None:
    """The signature that some words hold, if any does that names more than an exception."""
    reader = LogReader(settings=False)
    reader.feed(text.encode() + b"\n")
    return _main(reader.close(), Strength.HANG)


def _main(scan: Scan, weakest: Strength) -> str | None:
    main = scan.main
    return main.signature if main is not None and main.strength <= weakest else None
