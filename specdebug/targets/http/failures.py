"""How a server's failure is told: by its process and its log where they are known, else by what it said last."""

from __future__ import annotations

import re
from typing import Protocol

from specdebug.logs.naming import name_of
from specdebug.logs.rule import Strength
from specdebug.logs.scan import Scan, scan_bytes
from specdebug.targets.http.checked import BadAnswer
from specdebug.targets.http.client import Declined, Silent
from specdebug.targets.launch.log import ServerLog
from specdebug.targets.serving import SessionFailed

MAX_WORDS = 80
_NO_SITE = re.compile(r"[^\w.#]+")


class Host(Protocol):
    """A server that was started here: its process and its log."""

    @property
    def log(self) -> ServerLog: ...

    def status(self) -> int | None:
        """Its exit status; None while it runs. One that is about to end is waited for, a moment."""

    def release(self, sound: bool) -> None:
        """The run is over; ``sound``: nothing was found."""


def failure_of(error: Exception, host: Host | None, url: str, rid: str = "") -> SessionFailed:
    """What became of a server of which a call failed."""
    about = f"request {rid}: " if rid else ""
    status = None if host is None else host.status()
    if host is not None and status is not None:
        log = host.log.scan_run()
        kind, site = split(name_of(log, status))
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        words = "" if log.main is None else f": {log.main.text}"
        return SessionFailed(f"{about}the server ended ({how}){words}; its log is {host.log.path}", site, kind)
    told = said_in(str(error)) or (None if host is None else _main(host.log.scan_run(), Strength.EXCEPTION))
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
    return _main(scan_bytes(text.encode() + b"\n", settings=False), Strength.HANG)


def _main(scan: Scan, weakest: Strength) -> str | None:
    main = scan.main
    return main.signature if main is not None and main.strength <= weakest else None
