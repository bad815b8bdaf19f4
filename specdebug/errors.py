"""Errors a user can cause. Each ends in one clear line; the CLI renders it and picks the exit code.

``str(error)`` is that line: what is wrong, where (``file:line:col`` when a file is at fault), and how to mend it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


class SpecDebugError(Exception):
    """Base of every error that is somebody's to mend; never shown as a traceback without ``--debug``."""

    exit_code = 2


class ConfigError(SpecDebugError):
    """An engine option is unknown, of the wrong type, or impossible together with another."""


class CheckpointError(SpecDebugError):
    """A checkpoint is missing, truncated, or of an architecture the loader does not read."""


class CannotRunHere(SpecDebugError):
    """This machine lacks what was asked for, such as a GPU: nothing is wrong with the input, and nothing is decided."""

    exit_code = 125


@dataclass(frozen=True)
class Where:
    """A place in a text file; line and column count from 1, 0 means unknown."""

    path: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        parts = [self.path]
        if self.line:
            parts.append(str(self.line))
            if self.column:
                parts.append(str(self.column))
        return ":".join(parts)


class ContentError(SpecDebugError):
    """A scenario, toggle or probe pack is malformed. Rendered as ``file:line:col: what, did you mean``."""

    def __init__(self, message: str, where: Where | None = None) -> None:
        self.message = message
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest known word, ``"; known: a, b"`` when nothing is near."""
    names = sorted(set(known))
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known: {', '.join(names)}" if names else ""
