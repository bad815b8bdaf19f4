"""Slices of a corpus, counted in tokens, without tokenising more of it than a slice needs.

The whole held-out library is too much to tokenise in every worker; a window of a few kilobytes gives the same tokens.
It is cut longer than needed and its last tokens are dropped, because a text's end can split a word and so change them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from specdebug.base.errors import SpecDebugError

CHARS_PER_TOKEN = 5
"""First guess of a window's length; a window that proves short is doubled."""
MARGIN_TOKENS = 64
"""More tokens than the longest unbroken word of a line of source makes."""
_DRAWS = 8


class Tokenizer(Protocol):
    """The part of ``tokenizers.Tokenizer`` that is used."""

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> Any:
        """An object with the token ids in ``ids``."""


class CorpusTooShort(SpecDebugError):
    """A slice asks for more tokens than the corpus has."""


class Slicer:
    """Cuts slices from one text. ``encode`` gives token ids of a text, without special tokens."""

    def __init__(self, name: str, text: str, encode: Callable[[str], Sequence[int]]) -> None:
        self._name = name
        self._text = text
        self._encode = encode
        self._head: Sequence[int] = ()
        self._head_is_all = False

    def at(self, offset: int, tokens: int) -> tuple[int, ...]:
        """Tokens ``offset .. offset + tokens`` of the text. Raises CorpusTooShort."""
        if len(self._head) < offset + tokens and not self._head_is_all:
            self._head, self._head_is_all = self._window(0, offset + tokens)
        found = tuple(self._head[offset : offset + tokens])
        if len(found) < tokens:
            raise CorpusTooShort(
                f"the corpus '{self._name}' has {len(self._head)} tokens, too few for {tokens} from offset {offset}"
            )
        return found

    def draw(self, rng: random.Random, tokens: int) -> tuple[int, ...]:
        """``tokens`` tokens from the start of a line drawn by ``rng``. A line too near the text's end is drawn again
        from its first half, then quarter and so on, at last the start. Raises CorpusTooShort."""
        for draw in range(_DRAWS):
            position = rng.randrange((len(self._text) >> draw) + 1)
            window, _ = self._window(self._text.rfind("\n", 0, position) + 1, tokens)
            if len(window) >= tokens:
                return tuple(window[:tokens])
        return self.at(0, tokens)

    def _window(self, start: int, tokens: int) -> tuple[Sequence[int], bool]:
        """At least ``tokens`` tokens from character ``start``; fewer, and True, where the text ends."""
        length = (tokens + MARGIN_TOKENS) * CHARS_PER_TOKEN
        while True:
            ids = self._encode(self._text[start : start + length])
            if start + length >= len(self._text):
                return ids, True
            if len(ids) >= tokens + MARGIN_TOKENS:
                return ids[: len(ids) - MARGIN_TOKENS], False
            length *= 2
