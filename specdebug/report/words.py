"""Phrases that several reports share, and text from elsewhere (a name, a message, a log) made fit to be shown."""

import os
import re
from collections.abc import Iterable, Sequence

NOT_ENGINE_CODE = "in place of the engine's own GPU code"
_WITHIN_LINES = re.compile(r"[^\r\n]+|\r(?!\n)")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_PATH = re.compile(r"(?<![\w./])/(?!/)[^\s'\"`:,;()\[\]{}<>|*?]+")


def times(count: int) -> str:
    """``once``, ``3 times``."""
    return "once" if count == 1 else f"{count} times"


def counted(count: int, noun: str) -> str:
    """``1 trial``, ``3 trials``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def number(value: float | None, digits: int) -> str:
    """The number with so many digits after the point; a dash for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def dash(value: object) -> str:
    """The value; a dash for none."""
    return "-" if value is None else str(value)


def ended(verdict: str, signature: str | None) -> str:
    """``pass``, ``fail nan@draft.logits``."""
    return f"{verdict} {signature}" if signature else verdict


def some(names: Sequence[str], most: int) -> str:
    """The first names; of more than ``most`` also how many are left: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def replaced(parts: Sequence[str]) -> list[str]:
    """A short line on what is not the engine's own code (``Outcome.not_engine_code``), if anything is not: what is told
    in words by its name, the stand-ins by their number."""
    told = [name for name, colon, _ in (part.partition(": ") for part in parts) if colon]
    if len(parts) > len(told):
        told.append(counted(len(parts) - len(told), "stand-in"))
    return [f"{NOT_ENGINE_CODE}: {'; '.join(told)} (see --json)"] if parts else []


def not_engine_code(arms: Iterable[tuple[str, Sequence[str]]], *, short: bool = False) -> list[str]:
    """A line on what is not the engine's own code for all arms that share it: all of it, or as :func:`replaced` has
    it."""
    sharing: dict[tuple[str, ...], list[str]] = {}
    for arm, parts in arms:
        sharing.setdefault(tuple(parts), []).append(arm)
    return [
        f"{', '.join(names)}: {told}"
        for parts, names in sharing.items()
        for told in (replaced(parts) if short else [f"{NOT_ENGINE_CODE}: {'; '.join(parts)}"] if parts else [])
    ]


def shown(text: object) -> str:
    """Return ``text`` on one line, with every character that is not printable as its escape.

    Control characters (an escape sequence starts with one), line breaks, marks that turn the direction of writing and
    lone surrogates come out as ``\\x1b``, ``\\n``, ``\\u202e``, ``\\udc80``. Everything printable stays as it is.
    """
    plain = str(text)
    return plain if plain.isprintable() else "".join(map(_escape, plain))


def shown_lines(text: object) -> str:
    """Return ``text`` with its lines kept apart (by ``\\n`` or ``\\r\\n``), each of them as :func:`shown` has it."""
    return _WITHIN_LINES.sub(lambda part: shown(part[0]), str(text))


def _escape(char: str) -> str:
    if char.isprintable() or char in _SHORT:
        return _SHORT.get(char, char)
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def without_local_paths(text: str) -> str:
    """Shorten every absolute path of at least two parts that begins with a folder of this machine: within an
    installation to its path there, else to its last part. A route of a server, as ``/v1/models``, begins with none."""

    def shortened(found: re.Match[str]) -> str:
        path = found[0].rstrip("/")
        top, *rest = path[1:].split("/")
        if not rest or not os.path.isdir(f"/{top}"):
            return found[0]
        _, installed, inside = path.partition("site-packages/")
        return inside if installed else f".../{rest[-1]}"

    return _PATH.sub(shortened, text)
