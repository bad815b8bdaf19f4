"""The order in which requests go to the engine: each client's body gets its share, however much another asks for.

Weighted fair queueing (Demers, Keshav and Shenker, 1989), with tokens for bits: a request is due when a server that
gave all waiting bodies an equal part would be done with it. A short one overtakes the long ones that wait, a batch of
thousand is passed by all that come behind it, and nothing waits for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from specdebug.apps.serve.served import ServedRequest


class FairQueue:
    """Requests that wait to be sent; those that have ended meanwhile count for nothing."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, ServedRequest]] = []
        self._numbers = count()
        self._now = 0.0  # tokens that every waiting body has had by now

    def add(self, requests: Sequence[ServedRequest]) -> None:
        """Take in the requests of one body."""
        due = self._now
        for each in requests:
            due += tokens_of(each)
            heapq.heappush(self._waiting, (due, next(self._numbers), each))

    def pop(self) -> ServedRequest | None:
        """The request that is due first; None where none waits."""
        while self._waiting:
            _, _, request = heapq.heappop(self._waiting)
            if not request.done:
                self._now += tokens_of(request) / (len(self._waiting) + 1)
                return request
        return None

    def __len__(self) -> int:
        return sum(not request.done for _, _, request in self._waiting)


def tokens_of(request: ServedRequest) -> int:
    """Tokens of a request's prompt and output, at most."""
    return len(request.wish.ids) + int(request.wish.sampling.get("max_new_tokens", 1))
