"""The stop strings of a request: which of them is in its output, and after which token.

After each token the text is what the whole output decodes to, as a client would see it; the prompt is no part of it. A
character whose bytes have not all come is no text yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from specdebug.engine.model.tokenizer import TargetTokenizer

CHARACTER = 4
"""Most bytes of a character in UTF-8."""


class StopStrings:
    """Looks for stop strings in an output that grows token by token.

    A token that the tokenizer knows stands for at least a byte, so a string that the newest token completes lies in as
    many tokens as it has bytes; only those are decoded. One more stands before them, because some decoders strip what
    is first. A tail that begins within a character can lose what follows (decoders with byte tokens read a run of them
    as a whole), so it begins at four places, one of which is the beginning of a character. What a tail says is believed
    once the whole output says so.
    """

    def __init__(self, strings: Sequence[str], tokenizer: TargetTokenizer) -> None:
        self._strings = tuple(strings)
        self._tokenizer = tokenizer
        self._reach = 1 + max(len(string.encode("utf-8", "surrogatepass")) for string in self._strings)

    def completed(self, output_ids: Sequence[int]) -> str | None:
        """The first listed stop string in the text of the output, none of which was in it before the last token."""
        if not self._tokenizer.has(output_ids[-1]):
            return None
        known = filter(self._tokenizer.has, reversed(output_ids))
        tail = list(islice(known, self._reach + CHARACTER - 1))[::-1]
        starts = range(max(1, min(CHARACTER, len(tail) - self._reach + 1)))
        if all(self._found(tail[start:]) is None for start in starts):
            return None
        return self._found(output_ids)

    def _found(self, ids: Sequence[int]) -> str | None:
        text = self._tokenizer.decode(ids)
        return next((string for string in self._strings if string in text), None)
