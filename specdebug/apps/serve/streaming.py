"""Answers to bodies, whichever route they came by: whole, or as a stream of what comes, in pieces of text that make up
the whole, with the tokens that they are of.

An event is made when the client has taken the one before, of all that is new by then. So of a client that reads slowly,
or not at all, no more than one event waits.
"""

from __future__ import annotations

import asyncio
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from specdebug.apps.serve.answers import (
    DONE,
    Refusal,
    abort_all,
    all_finished,
    begun,
    error_body,
    event,
    refusal_of,
    sse,
    while_connected,
)
from specdebug.apps.serve.bodies import AskedBody
from specdebug.apps.serve.reading import read_body
from specdebug.apps.serve.served import ServedRequest
from specdebug.apps.serve.state import ServerState
from specdebug.apps.serve.text import GrowingText

Body = TypeVar("Body", bound=AskedBody)


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


class Form(ABC, Generic[Body]):
    """A route's own way to read a body and to tell of its requests. One is made for each body."""

    body: Body

    def __init__(self, state: ServerState) -> None:
        self.state = state

    @abstractmethod
    def read(self, data: Any) -> Body:
        """Read the JSON of a body. Raises BadField."""

    @abstractmethod
    def whole(self, requests: Sequence[ServedRequest]) -> Any:
        """The answer of requests that have ended."""

    @abstractmethod
    def piece(self, at: int, request: ServedRequest, piece: Piece) -> Any:
        """The event of what is new of the request that is ``at`` this place in the body."""

    def opening(self) -> list[Any]:
        """Events that a stream begins with."""
        return []

    def closing(self, requests: Sequence[ServedRequest]) -> list[Any]:
        """Events that a stream ends with."""
        return []

    def text_of(self, at: int, request: ServedRequest) -> str:
        """The text of a request that has ended."""
        return self.state.growing(self.body.asked[at]).finish(request.output_ids, request.matched)

    async def answer(self, http: Request) -> Response:
        """Answer one body, by a document or a stream. Raises BadField, Refusal or ClientGone."""
        self.body = await read_body(http, self.state, self.read)
        requests = self.state.submit(self.body.asked, http.state.connection)
        try:
            if self.body.stream:
                await while_connected(http, begun(requests))
                return sse(self.state.client, requests, self._stream(requests))
            await while_connected(http, all_finished(requests))
        except BaseException:
            abort_all(self.state.client, requests)
            raise
        return JSONResponse(self.whole(requests))

    async def _stream(self, requests: Sequence[ServedRequest]) -> AsyncIterator[bytes]:
        def told(at: int, request: ServedRequest) -> PiecewiseRequest:
            growing = self.state.growing(self.body.asked[at])
            return PiecewiseRequest(request, growing, lambda piece: event(self.piece(at, request, piece)))

        for each in self.opening():
            yield event(each)
        async for made in merged([told(at, request) for at, request in enumerate(requests)], self.state.say):
            yield made
        for each in self.closing(requests):
            yield event(each)
        yield DONE


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
