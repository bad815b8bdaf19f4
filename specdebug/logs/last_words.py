"""The line of a log that says what ended its process, which is seldom the last one.

Around an exception's traceback stand the farewells of other processes and of whoever cleaned up.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdebug.logs.scan import LogReader

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
    reader = LogReader(settings=False)
    reader.feed(text.encode())
    main = reader.close().main
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
