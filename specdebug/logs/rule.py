"""The rules by which a line of a log tells of a failure, what it tells, the weight of each kind of message, and the
words of a message or of an asserted expression as a name has them: short, the same from run to run, and safe.

What varies is ``#``: numbers, addresses, identifiers of requests, data in quotes. What a pattern, a terminal or the
``@`` before a place would misread (brackets, quotes, control characters) is replaced or left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from specdebug import async_probe
from specdebug.logs.around import Around
from specdebug.logs.patterns import Match, Pattern, compiled

KINDS = (
    *async_probe.KINDS, "accept-drop", "assert", "ends", "error", "graphs", "guard", "illegal-address",
    "launch-failure", "mismatch", "oom", "pools", "ranks", "sampling", "stale", "unwritten",
    "work",
)  # fmt: skip
"""The kinds of our violations that have a site."""


class Strength(IntEnum):
    """The weight of a message, the greatest first: one that names a place outranks one that names only the end."""

    VERDICT = 0  # a verdict of ours: the signature that names a failure, of all that was found
    NAMED = 1  # any other of our signatures
    PROBE = 2  # an asynchronous probe of SGLang's, in its own words
    CHECK = 3
    """A check that says what it found: an assertion on the device or of C++, NaN in the logits, a leaking pool."""
    DEVICE = 4  # a CUDA error, which surfaces later and elsewhere than what caused it
    FATAL = 5  # an exception of which the engine says that a process of its own ended with it
    DEATH = 6  # the end of a process by a fault of its own, or of the machine's memory
    HANG = 7  # a watchdog of the engine's, or a call between its processes that was not answered
    REQUEST = 8  # a request that the engine gives up, and goes on without
    REPORTED = 9  # the reason that a test runner gives for a failed test
    EXCEPTION = 10  # any other exception or failed assertion of Python's; a time limit that was exceeded
    SAID = 11  # an error of drafting or verifying that an engine logs without an exception
    LOGGED = 12  # any other error that an engine logs without an exception
    LEFT = 13  # a consequence of another failure: killed from outside, waiting for a rank or a server that is gone
    TEST = 14  # a test that failed, without a reason
    MENTION = 15  # a failure that was tried again or is said as a warning; an exception that another message quotes


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


def matched(
    words: Sequence[bytes],
    pattern: bytes,
    make: Callable[[Match], Hit | None],
    *,
    numbers: bool = False,
    complete: Callable[[Hit, Around], Hit] | None = None,
) -> LogRule:
    """A rule for a message of which ``make`` makes a hit, or none, by the pattern's groups."""
    find = compiled(pattern)

    def name(line: bytes, at: int) -> list[Hit]:
        found = find.search(line)
        hit = None if found is None else make(found)
        return [] if hit is None else [hit]

    return LogRule(tuple(words), (pattern,), name, numbers, complete)


def unless_passed_over(hit: Hit, around: Around) -> Hit:
    """The hit, a mere mention where it was tried again or is said as a warning."""
    return hit._replace(strength=Strength.MENTION) if around.passed_over else hit


def printable(data: bytes) -> str:
    """Foreign bytes as text that does nothing to a terminal."""
    text = data.decode("utf-8", "replace")
    return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)


def slug(text: str) -> str:
    """A message's own words for a place, as a site: ``verify: target logits`` is ``verify.target_logits``."""
    plain = "".join(char if char.isalnum() or char in "_:" else " " for char in text[: 4 * MAX_SITE])
    parts = ("_".join(part.split()).strip("_") for part in plain.split(":"))
    return ".".join(part for part in parts if part)[:MAX_SITE] or "unknown"


MAX_WORDS = 80  # characters of a message or an expression in a name
_LOOKED_AT = 8 * MAX_WORDS

_ADDRESS = compiled(rb"(?i:https?://[^\s'\"<>)]+)")
_UUID = compiled(rb"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_REQUEST = compiled(rb"\b((?i:chatcmpl|cmpl|rid|req|request|resp|session)[-_])[\w-]*[0-9][\w-]*")
_PATH = compiled(rb"(?:~|\.{1,2})?(?:/[\w.+@-]+)+/([\w.+-]+)")
_DIGIT = compiled(rb"\d")
_MIXED = compiled(rb"\b\w*\d\w*")
_NUMBER = compiled(rb"\b(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\b")
_SEVERAL = compiled(rb"-?#(?:(?:[ ]*[,x;][ ]*|[ ]+)-?#)+,?")
_QUOTED = compiled(rb"'([^'\n]*)'|\"([^\"\n]*)\"|`([^`\n]*)`")
_PLAIN = compiled(rb"^[A-Za-z_#][\w.#:<>-]{0,60}$|[=<>!]=|[<>]|->|::")
_CHAIN = compiled(rb"\b[A-Za-z_]\w*(?:\(\)|\[[^\[\]]*\])*(?:(?:\.|->)[A-Za-z_]\w*(?:\(\)|\[[^\[\]]*\])*)+")
_LITTLE = frozenset({b"shape", b"ndim", b"dtype", b"device", b"size", b"data"})
_AROUND = compiled(rb"[ ]*(==|!=|<=|>=|&&|\|\||[<>+*/%,=-])[ ]*")
_SAFE = bytes.maketrans(b"[]{}\\@\t", b"()()/. ")
_DROPPED = b"\"'`"


def message_of(text: bytes) -> str:
    """A message of an exception or of a log, as a name has it; empty where it says nothing."""
    line = text[:_LOOKED_AT].split(b"\n", 1)[0]
    line = _replaced(_ADDRESS, line, lambda found: b"URL")
    line = _replaced(_UUID, line, lambda found: b"#")
    line = _replaced(_REQUEST, line, lambda found: found[1] + b"#")
    line = _replaced(_PATH, line, lambda found: b"#" if _DIGIT.search(found[1]) else found[1])
    line = _replaced(_QUOTED, _without_numbers(line), _unquoted)
    return _bounded(_replaced(_SEVERAL, line, lambda found: b"#"))


def expression_of(text: bytes) -> str:
    """An asserted expression as a name has it: no blanks around operators, and of ``request.count`` the last word only,
    or the last two where the last says little, as in ``tokens.size()``."""
    line = b" ".join(text[:_LOOKED_AT].split())
    line = _replaced(_CHAIN, _without_numbers(line), lambda found: _last_of(found[0]))
    line = _replaced(_AROUND, line, lambda found: found[1])
    return _bounded(line.replace(b"( ", b"(").replace(b" )", b")"))


def _last_of(chain: bytes) -> bytes:
    parts = chain.replace(b"->", b".").split(b".")
    little = parts[-1].endswith((b")", b"]")) or parts[-1] in _LITTLE
    return b".".join(parts[-2:]) if little else parts[-1]


def asserted_in(source: bytes) -> bytes:
    """The expression of an ``assert`` statement, without its message; empty of another statement."""
    statement, word, rest = source.strip().partition(b"assert")
    if statement or not word or rest[:1] not in (b" ", b"(", b"\t"):
        return b""
    text = _until_comma(rest.strip())
    if not (text.startswith(b"(") and text.endswith(b")")):
        return text
    depth = 0
    for place, char in enumerate(text):
        depth += (char == ord("(")) - (char == ord(")"))
        if depth == 0:  # without the one pair of brackets, if that is around all of it
            return text[1:-1].strip().rstrip(b",") if place == len(text) - 1 else text
    return text


def _until_comma(text: bytes) -> bytes:
    """A text up to its first comma, or comment, that is in no brackets and no quotes."""
    depth, quote = 0, 0
    for place, char in enumerate(text):
        if quote:
            quote = 0 if char == quote else quote
        elif char in b"'\"":
            quote = char
        elif char in b"([{":
            depth += 1
        elif char in b")]}":
            depth -= 1
        elif depth == 0 and char in b",#":
            return text[:place].strip()
    return text


def _without_numbers(text: bytes) -> bytes:
    text = _replaced(_NUMBER, text, lambda found: b"#")
    return _replaced(_MIXED, text, lambda found: _mixed(found[0]))


@lru_cache(1000)
def _mixed(word: bytes) -> bytes:
    """A word with digits in it: an identifier or a checksum is ``#``, of another only its digits are."""
    kinds = [chr(char).isdigit() for char in word if char != ord("_")]
    turns = sum(one != other for one, other in pairwise(kinds))
    checksum = len(word) >= 8 and all(char in b"0123456789abcdefABCDEFx" for char in word)
    if turns > 2 or checksum:
        return b"#"
    made = bytearray()
    for char in word:
        if not chr(char).isdigit():
            made.append(char)
        elif made[-1:] != b"#":
            made += b"#"
    return bytes(made)


def _unquoted(found: Match) -> bytes:
    """The text in quotes: a name or an expression as it is, anything else is data."""
    inner: bytes = found[1] or found[2] or found[3] or b""
    return inner if _PLAIN.search(inner) is not None else b"#"


def _replaced(pattern: Pattern, text: bytes, by: Callable[[Match], bytes]) -> bytes:
    parts, end = [], 0
    for found in pattern.finditer(text):
        parts += [text[end : found.start()], by(found)]
        end = found.end()
    return b"".join([*parts, text[end:]])


def _bounded(line: bytes) -> str:
    """A line as text that does nothing to a terminal, a shell's wildcards or a signature, cut behind a word."""
    plain = line.translate(_SAFE, _DROPPED).decode("utf-8", "replace")
    text = "".join(char if char.isprintable() else " " for char in plain)
    text = " ".join(text.split()).strip(" .,:-_")
    if len(text) > MAX_WORDS:
        cut = text.rfind(" ", MAX_WORDS // 2, MAX_WORDS)
        text = text[: cut if cut > 0 else MAX_WORDS].rstrip(" .,:-_(")
    return text
