"""The rules by which a line of a log tells of a failure, what it tells, and the weight of each kind of message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from specdebug import async_probe
from specdebug.logs.around import Around
from specdebug.logs.patterns import compiled

KINDS = (
    *async_probe.KINDS, "accept-drop", "assert", "ends", "error", "graphs", "guard", "illegal-address",
    "launch-failure", "mismatch", "oom", "pools", "sampling", "stale", "unwritten",
)  # fmt: skip
"""The kinds of our violations that have a site."""


class Strength(IntEnum):
    """The weight of a message, the greatest first: one that names a place outranks one that names only the end."""

    VERDICT = 0
    """A verdict of ours: the signature that names a failure, of all that was found."""
    NAMED = 1
    """Any other of our signatures."""
    PROBE = 2
    """An asynchronous probe of SGLang's, in its own words."""
    CHECK = 3
    """A check that says what it found: an assertion on the device or of C++, NaN in the logits, a leaking pool."""
    DEVICE = 4
    """A CUDA error, which surfaces later and elsewhere than what caused it."""
    FATAL = 5
    """An exception of which the engine says that a process of its own ended with it."""
    DEATH = 6
    """The end of a process by a fault of its own, or of the machine's memory."""
    HANG = 7
    """A watchdog of the engine's, or a call between its processes that was not answered."""
    REQUEST = 8
    """A request that the engine gives up, and goes on without."""
    REPORTED = 9
    """The reason that a test runner gives for a failed test."""
    EXCEPTION = 10
    """Any other exception or failed assertion of Python's; a time limit that was exceeded."""
    SAID = 11
    """An error of drafting or verifying that an engine logs without an exception."""
    LOGGED = 12
    """Any other error that an engine logs without an exception."""
    LEFT = 13
    """A consequence of another failure: killed from outside, waiting for a rank or a server that is gone."""
    TEST = 14
    """A test that failed, without a reason."""
    MENTION = 15
    """A failure that was tried again or is said as a warning; an exception that another message quotes."""


class Hit(NamedTuple):
    """A failure that a line tells of. ``means``: the kind of damage, which may be more telling than the signature's
    kind: ``oob`` for an assertion on the device about an index."""

    signature: str
    strength: Strength
    means: str
    vague: bool = False
    """The line does not tell failures apart, as a lone ``AssertionError`` does not: what stands around it must."""


MAX_SITE = 80


@dataclass(frozen=True)
class LogRule:
    """One way in which a line tells of a failure.

    Attributes:
        words: one of these is in every such line, so that most of a log need not be looked at any further.
        patterns: find the lines.
        name: the hits of a line, given the line and the place of the pattern in it; none where that found too much.
        numbers: the hits depend on the line's digits (otherwise only as far as a signature itself holds them).
        complete: the hit with what stands around the line; None for a rule that needs nothing but the line.
    """

    words: tuple[bytes, ...]
    patterns: tuple[bytes, ...]
    name: Callable[[bytes, int], Sequence[Hit]]
    numbers: bool = False
    complete: Callable[[Hit, Around], Hit] | None = None


def said(
    signature: str,
    strength: Strength,
    words: Sequence[bytes],
    *patterns: bytes,
    complete: Callable[[Hit, Around], Hit] | None = None,
) -> LogRule:
    """A rule for a message whose signature is always the same."""
    hits = (Hit(signature, strength, signature.split("@")[0].split(":")[0]),)
    return LogRule(tuple(words), patterns, lambda line, at: hits, complete=complete)


def placed(
    kind: str, strength: Strength, words: tuple[bytes, ...], pattern: bytes, place: Callable[[bytes], str]
) -> LogRule:
    """A rule for a message of one kind. ``place`` makes the rest of the signature of the pattern's first group."""
    find = compiled(pattern)

    def name(line: bytes, at: int) -> list[Hit]:
        found = find.search(line)
        return [] if found is None else [Hit(kind + place(found[1]), strength, kind[:-1])]

    return LogRule(words, (pattern,), name)


def printable(data: bytes) -> str:
    """Foreign bytes as text that does nothing to a terminal."""
    text = data.decode("utf-8", "replace")
    return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)


def short(data: bytes) -> str:
    """The first of some foreign bytes as text."""
    return printable(data[:MAX_SITE])


def slug(text: str) -> str:
    """A message's own words for a place, as a site: ``verify: target logits`` is ``verify.target_logits``."""
    plain = "".join(char if char.isalnum() or char in "_:" else " " for char in text[: 4 * MAX_SITE])
    parts = ("_".join(part.split()).strip("_") for part in plain.split(":"))
    return ".".join(part for part in parts if part)[:MAX_SITE] or "unknown"
