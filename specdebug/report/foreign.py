"""Text from elsewhere (a file's name or description, a message, a log), fit to be printed."""

from __future__ import annotations

import re

_WITHIN_LINES = re.compile(r"[^\r\n]+|\r(?!\n)")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(text: object) -> str:
    """Return ``text`` on one line, with every character that is not printable as its escape.

    Control characters (an escape sequence starts with one), line breaks, marks that turn the direction of writing and
    lone surrogates come out as ``\\x1b``, ``\\n``, ``\\u202e``, ``\\udc80``. Everything printable stays as it is.
    """
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(char if char.isprintable() else _escape(char) for char in plain)


def shown_lines(text: object) -> str:
    """Return ``text`` with its lines kept apart (by ``\\n`` or ``\\r\\n``), each of them as :func:`shown` has it."""
    return _WITHIN_LINES.sub(lambda part: shown(part[0]), str(text))


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
