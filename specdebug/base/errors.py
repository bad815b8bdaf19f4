"""Errors a user can cause. Each ends in one clear line; the CLI renders it and picks the exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any


class SpecDebugError(Exception):
    """Base of every error that a user can mend; never shown as a traceback without ``--debug``."""

    exit_code = 2


class InvalidOption(SpecDebugError):
    """One option is wrong: the one at ``key_path``, e.g. ``("speculative", "eagle_topk")``, for a ``reason``."""

    def __init__(self, message: str, key_path: tuple[str, ...] = ()) -> None:
        self.key_path = key_path
        self.reason = message
        path = ".".join(key if key.isprintable() else repr(key) for key in key_path)
        super().__init__(f"engine.{path}: {message}" if key_path else message)


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
        known = filter(None, (self.line, self.column if self.line else 0))
        return ":".join([self.path, *map(str, known)])


class ContentError(SpecDebugError):
    """A scenario, toggle or probe pack is malformed. Rendered as ``file:line:col: what, did you mean``.

    ``path``: keys and indices that lead to the value at fault, where a document was read; else None. ``reason``: what
    is wrong with that value, without its name.
    """

    def __init__(self, message: str, where: Where | None = None, reason: str = "") -> None:
        self.message = message
        self.reason = reason or message
        self.where = where
        self.path: tuple[str | int, ...] | None = None
        super().__init__(f"{where}: {message}" if where else message)

    @property
    def problems(self) -> tuple[ContentError, ...]:
        """Everything that was found wrong: this one alone, unless it is a :class:`ContentErrors`."""
        return (self,)


class ContentErrors(ContentError):
    """Several things are wrong with a file. It reads like the first of them; ``problems`` holds all, by place.

    ``partial``: what could be read all the same, with defaults in the place of what could not; None if nothing could.
    """

    def __init__(self, problems: Iterable[ContentError], partial: Any = None) -> None:
        nowhere = Where("")
        self._problems = tuple(sorted(problems, key=lambda problem: astuple(problem.where or nowhere)))
        self.partial = partial
        super().__init__(self._problems[0].message, self._problems[0].where)

    @property
    def problems(self) -> tuple[ContentError, ...]:
        """Each of them, the first in the file first."""
        return self._problems


def problems_in(error: SpecDebugError) -> tuple[SpecDebugError, ...]:
    """All that an error tells of: each problem of a file, or the error itself."""
    return error.problems if isinstance(error, ContentError) else (error,)


def raise_all(problems: Sequence[ContentError], partial: Any = None) -> None:
    """Raise what was found wrong: a :class:`ContentErrors` of all of it; nothing if there is nothing."""
    if problems:
        raise ContentErrors(problems, partial)


def one_line(text: str, limit: int = 120) -> str:
    """``text`` fit for one line of an error: white space collapsed, controls escaped, cut at ``limit``."""
    flat = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in " ".join(text.split()))
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest known word, ``"; known: a, b"`` when nothing is near."""
    names = sorted(set(known))
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known: {', '.join(names)}" if names else ""
