"""The order in which requests go to the engine: each client's body gets its share, however much another asks for.

Weighted fair queueing (Demers, Keshav and Shenker, 1989), with tokens for bits: a request is due when a server that
gave all waiting bodies an equal part would be done with it. A short one overtakes the long ones that wait, a batch of
thousand is passed by all that come behind it, and nothing waits for ever. Where long ones hold every place, the one
that is due last gives up its own to one that is due earlier, once it has had its turn; the engine has its KV cached
and goes on with it when a place is free.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from specdebug.apps.serve.served import ServedRequest

TURN = 32
"""Tokens that a request puts out before another may have its place: shorter outputs are never put back."""


@dataclass
class _Sent:
    """A request that the engine has. ``due``: when, in the queue's tokens. ``since``: tokens of its output as it last
    came to the engine, or gave up its place."""

    request: ServedRequest
    due: float
    since: int = 0


class FairQueue:
    """Requests that wait to be sent, and those that were, no more than ``places`` of which the engine runs at a time.
    Of those that wait and have ended meanwhile nothing is counted."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: list[tuple[float, int, ServedRequest]] = []
        self._sent: dict[ServedRequest, _Sent] = {}
        self._numbers = count()
        self._now = 0.0  # tokens that each of them would have had by now

    def add(self, requests: Sequence[ServedRequest]) -> None:
        """Take in the requests of one body."""
        due = self._now
        for each in requests:
            due += tokens_of(each)
            heapq.heappush(self._waiting, (due, next(self._numbers), each))

    def to_send(self) -> Iterator[tuple[ServedRequest, ServedRequest | None]]:
        """The requests that are to be sent now, in order, each with the one that gives up its place to it; None where
        a place is free."""
        while self._waiting:
            due, _, request = self._waiting[0]
            if request.done:
                heapq.heappop(self._waiting)
                continue
            last = None
            if len(self._sent) >= self._places and (last := self._give_way(due)) is None:
                return
            heapq.heappop(self._waiting)
            self._sent[request] = _Sent(request, due)
            self.served(len(request.wish.ids))
            yield request, last

    def served(self, tokens: int) -> None:
        """The engine has served so many tokens, of whichever requests."""
        self._now += tokens / max(len(self._sent) + len(self._waiting), 1)

    def _give_way(self, due: float) -> ServedRequest | None:
        """The request that is due last, and later than that, of those that have had their turn."""
        had = [each for each in self._sent.values() if len(each.request.output_ids) - each.since >= TURN]
        last = max(had, key=lambda each: each.due, default=None)
        if last is None or last.due <= due:
            return None
        last.since = len(last.request.output_ids)
        return last.request

    def has_sent(self, request: ServedRequest) -> bool:
        """Return True if the engine has it."""
        return request in self._sent

    def ended(self, request: ServedRequest) -> None:
        """Nothing more will come of a request."""
        self._sent.pop(request, None)

    def __len__(self) -> int:
        return sum(not request.done for _, _, request in self._waiting)


def tokens_of(request: ServedRequest) -> int:
    """Tokens of a request's prompt and output, at most."""
    return len(request.wish.ids) + int(request.wish.sampling.get("max_new_tokens", 1))
