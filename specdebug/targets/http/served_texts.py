"""The texts that a server was given since its cache was flushed: what it must have cached, and what it must count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from specdebug.targets.http.request import HttpRequest


class ServedTexts:
    """Texts that have ended, and what each request sent after them must find of its prompt.

    A text is cached whole pages at a time, and stays while nothing has to make room for another. So nothing is known of
    a server that others may use, that says neither its pages nor its room, or whose room was half asked for. A key of
    the cache may be a pair of tokens, as EAGLE's is, and a prompt's last token is always computed.

    ``page``, ``room``: slots a page, and all slots; 0 where they are not known.
    """

    def __init__(self, page: int = 0, room: int = 0) -> None:
        self._page = page
        self._room = room
        self._flushed = False
        self._asked = 0
        self._texts: list[tuple[bool, Sequence[int]]] = []
        self._owed: dict[str, int] = {}
        self._accepted: list[int] | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> ServedTexts:
        """Of a server that says this of itself. One of several replicas may be asked what another has."""
        alone = len(told.get("internal_states", ())) == 1 and not told.get("disable_radix_cache")
        return cls(told.get("page_size", 0), told.get("max_total_num_tokens", 0)) if alone else cls()

    def flushed(self) -> None:
        """The cache is empty, and the mean accept length begins anew."""
        self._flushed, self._asked = True, 0
        self._texts, self._owed, self._accepted = [], {}, []

    def sent(self, answer: HttpRequest) -> None:
        """A request is about to be sent."""
        self._asked += len(answer.prompt_ids) + answer.sampling.max_new_tokens + self._page
        shared = (_shared(text, answer.prompt_ids) for speculative, text in self._texts if speculative)
        found = min(max(shared, default=0), len(answer.prompt_ids) - 1) - 1
        self._owed[answer.rid] = found // self._page * self._page if self._page and found > 0 else 0

    def ended(self, answer: HttpRequest) -> None:
        """A request has ended; of one that was aborted it is not known what it left, and what was accepted for it."""
        if answer.finish_reason == "abort":
            self._accepted = None
            return
        self._texts.append((answer.speculative, answer.all_ids[:-1]))  # the last token has no KV
        if self._accepted is not None:
            self._accepted += answer.accept_lengths

    def owed(self, rid: str) -> int:
        """The least that a request must have found in the cache of its prompt."""
        return self._owed.get(rid, 0) if self._flushed and 2 * self._asked <= self._room else 0

    @property
    def mean(self) -> float | None:
        """The mean accept length of all verifies since the flush; None where it is not known."""
        return sum(self._accepted) / len(self._accepted) if self._accepted else None


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens that two texts have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
