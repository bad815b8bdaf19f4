"""The name of a command's failure: the signature in its output, as triage reads it, else its exit status; and the line
that says what ended its process, which is seldom the last one.

``REVISION`` changes when failures come to be named otherwise: trials named in two ways must not be counted together.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from specdebug.logs.checks import died_of
from specdebug.logs.scan import Scan, scan_bytes

REVISION = "names 4"

HANG = "hang"
_LITTLE = ("exit:", "signal:", "error:", "assert:", "test:", "panic:", "crash:SIGKILL", "crash:SIGTERM")


def name_of(log: Scan, status: int) -> str:
    """Name the failure of a command: the strongest signature of its output and of the signal that ended it, else
    ``exit:1``.

    Args:
        log: the scan of its whole output.
        status: its exit status; negative for the signal that killed it, 128 + n where a shell says that of signal n.
    """
    main, died = log.main, died_of(status)
    if main is not None and (died is None or main.strength <= died.strength or _aborts(main.signature, died.signature)):
        return main.signature
    if died is not None:
        return died.signature
    if status >= 0:
        return f"exit:{status}"
    try:
        return f"signal:{signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"signal:{-status}"


def _aborts(said: str, died: str) -> bool:
    """Return True for an abort after a hang: a watchdog ends its process so."""
    return died == "crash:SIGABRT" and said.startswith(HANG)


def tells_of_damage(signature: str) -> bool:
    """Return False for a name that only says that an exception, a test, a kill or an exit code ended the run, however
    precisely."""
    return not signature.startswith(_LITTLE)


_TRACEBACK = "Traceback (most recent call last):"
_LEVELS = {"CRITICAL", "DEBUG", "ERROR", "INFO", "WARN", "WARNING"}
_AFTER = {
    "BrokenPipeError", "ConnectionRefusedError", "ConnectionResetError", "EOFError", "KeyboardInterrupt", "SystemExit",
}  # fmt: skip
"""What is raised where another process has ended, or was told to."""
_LINES = 400
"""Most lines of one traceback."""


def last_words(text: str) -> str:
    """Return the last exception that some process ended with, not of another one's end; else the line that names the
    failure best; else the last line; empty of a log that says nothing."""
    lines = text.splitlines()
    found = (_exception(lines, at) for at, line in enumerate(lines) if _TRACEBACK in line)
    ended = [line for line in found if line]
    own = [line for line in ended if _raised(line).rpartition(".")[2] not in _AFTER]
    if own or ended:
        return (own or ended)[-1]
    main = scan_bytes(text.encode(), settings=False).main
    if main is not None:
        return main.text
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _exception(lines: Sequence[str], at: int) -> str:
    """The line behind the traceback that begins at a line; empty where it has no end. What stands before each line of a
    record, as vLLM's log has it, is left out."""
    head = lines[at].partition(_TRACEBACK)[0]
    for line in lines[at + 1 : at + 1 + _LINES]:
        own = line.removeprefix(head)
        if _raised(own):
            return own.strip()
        if _TRACEBACK in line:
            return ""
    return ""


def _raised(line: str) -> str:
    """The exception that a line begins with, with its module; empty of any other line."""
    name, colon, rest = line.rstrip().partition(":")
    named = name not in _LEVELS and all(part.isidentifier() for part in name.split("."))
    return name if named and (not colon or rest[:1] in ("", " ")) else ""
