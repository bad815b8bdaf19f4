"""A rule by which a line of a log tells of a failure, and the ways to make one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdebug.logs.around import Around
from specdebug.logs.engine import compiled
from specdebug.logs.hits import Hit, Strength

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
