"""The engine for patterns over foreign text: RE2, whose time is linear in the text for every pattern.

Where RE2 is not installed, Python's own engine reads the same patterns. It may go back over what it has read, so
readers then look at :data:`SHORT` bytes of a line at most.
"""

import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

SHORT = 4096  # bytes of a line that are looked at where the engine is not linear


Match: TypeAlias = re.Match[bytes]
Pattern: TypeAlias = re.Pattern[bytes]  # of either engine: RE2's patterns and matches have the same methods


def _load() -> Any:
    try:
        module = importlib.import_module("re2")
    except ImportError:
        return None
    return module if hasattr(module, "Set") and hasattr(module, "Options") else None  # other packages have that name


_RE2 = _load()


def linear() -> bool:
    """Return True if patterns take linear time here: RE2 is installed."""
    return _RE2 is not None


def bounded(text: bytes, words: Sequence[bytes] = ()) -> bytes:
    """The text; where the engine is not linear, of each long line only the part around the first of some words."""
    if _RE2 is not None:
        return text
    lines = text.split(b"\n")
    for number, line in enumerate(lines):
        if len(line) > SHORT:
            begin = max(0, min((at for word in words if (at := line.find(word)) >= 0), default=0) - SHORT // 4)
            lines[number] = line[begin : begin + SHORT]
    return b"\n".join(lines)


def compiled(pattern: bytes) -> Pattern:
    """Compile a pattern. ``^`` and ``$`` are the ends of a line, ``.`` is any byte but a newline. Raises ValueError if
    it is no pattern, or one that needs going back (look-arounds, back references)."""
    return _compile(b"(?m)" + pattern, captures=True)


def line_finder(patterns: Sequence[bytes]) -> Pattern:
    """Compile patterns into one that finds each line that any of them is in, once: it runs on to the end of the line.
    Raises ValueError as :func:`compiled` does."""
    return _compile(b"(?m)(?:" + b"|".join(b"(?:" + one + b")" for one in patterns) + rb")[^\n]*", captures=False)


def _compile(pattern: bytes, *, captures: bool) -> Pattern:
    try:
        return cast(Pattern, re.compile(pattern) if _RE2 is None else _RE2.compile(pattern, _options(captures)))
    except (re if _RE2 is None else _RE2).error as error:
        raise ValueError(f"{pattern!r}: {error.args[0]!r}") from None


def _options(captures: bool) -> Any:
    options = _RE2.Options()
    options.encoding = _RE2.Options.Encoding.LATIN1  # bytes that are no text are bytes all the same
    options.log_errors = False
    options.never_capture = not captures
    return options


def word_finder(words: Sequence[bytes]) -> Callable[[bytes], set[int]]:
    """Return a function that finds the places in ``words`` of those that are in a text, in one pass over the text."""
    if _RE2 is None:
        return lambda text: {place for place, word in enumerate(words) if word in text}
    wanted = _RE2.Set.SearchSet(_options(captures=True))
    for word in words:
        wanted.Add(_RE2.escape(word))
    wanted.Compile()
    return lambda text: set(wanted.Match(text) or ())
