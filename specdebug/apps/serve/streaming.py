"""Requests' outputs as they come: text in pieces that make up the whole, and the tokens that they are of.

An event is made when the client has taken the one before, of all that is new by then. So of a client that reads slowly,
or not at all, no more than one event waits.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from specdebug.apps.serve.answers import Refusal, error_body, event, refusal_of
from specdebug.apps.serve.served import ServedRequest
from specdebug.apps.serve.text import GrowingText


@dataclass(frozen=True)
class Piece:
    """What is new. ``so_far``: all text up to here. ``since``: the first token that is new."""

    text: str
    so_far: str
    since: int


class PiecewiseRequest:
    """A request whose output is told in pieces. ``make``: the event of a piece. ``done``: the last one is made."""

    def __init__(self, request: ServedRequest, growing: GrowingText, make: Callable[[Piece], bytes]) -> None:
        self.request = request
        self.done = False
        self._growing = growing
        self._make = make
        self._told = 0

    def next(self) -> bytes | None:
        """The event of what is new, None where nothing is. Raises Refusal once it has ended with an error."""
        request, growing, since = self.request, self._growing, self._told
        ids = request.output_ids
        if request.done:
            self.done = True
            if refusal := refusal_of(request):
                raise refusal
            return self._make(Piece(growing.finish(ids, request.matched), growing.sent, since))
        if len(ids) == since:
            return None
        self._told = len(ids)
        return self._make(Piece(growing.grow(ids), growing.sent, since))


async def merged(streams: Sequence[PiecewiseRequest], say: Callable[[str], None]) -> AsyncIterator[bytes]:
    """The events of several requests as they come. One that ends with an error has that as its last event; ``say``
    hears of one that is ours."""
    news = asyncio.Event()
    for each in streams:
        each.request.tell_by(news)
    left = list(streams)
    while left:
        news.clear()
        for each in left:
            if (found := _next(each, say)) is not None:
                yield found
        left = [each for each in left if not each.done]
        if left:
            await news.wait()


def _next(stream: PiecewiseRequest, say: Callable[[str], None]) -> bytes | None:
    try:
        return stream.next()
    except Refusal as refusal:
        return event(error_body(refusal.status, str(refusal)))
    except Exception as error:
        stream.done = True
        say("".join(traceback.format_exception(error)).rstrip())
        return event(error_body(500, f"internal error: {type(error).__name__}"))
