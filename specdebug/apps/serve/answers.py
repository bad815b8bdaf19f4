"""From a body to its answer, whichever route it came by: whole, or as a stream of what comes, in pieces of text that
make up the whole, with the tokens that they are of.

A body is taken in no further than there is memory for. JSON grows as it is read: three bytes of it can become a list of
a hundred. So it is measured as it comes in, and one that would grow too far is refused before the rest of it is here.
Large bodies are read one at a time, in a thread, so that others are served meanwhile. An event of a stream is made when
the client has taken the one before, of all that is new by then: of a client that reads slowly, or not at all, no more
than one event waits.
"""

import asyncio
import contextlib
import json
import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from specdebug.apps.serve.bodies import AskedBody
from specdebug.apps.serve.client import EngineClient
from specdebug.apps.serve.fields import BadField, ClientGone, Refusal, parse
from specdebug.apps.serve.process import ENDING
from specdebug.apps.serve.requests import ServedRequest
from specdebug.apps.serve.state import ServerState
from specdebug.apps.serve.text import GrowingText

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "BadRequestError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
ASIDE_BYTES = 16 << 10  # bodies of so many bytes are read in a thread
MOST_BYTES = 16 << 20  # bytes of memory that the objects of one body may take
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"|(")(?:[^"\\]++|\\.)*+(\\?)\Z', re.DOTALL)
"""A string, or the beginning of one: its quote, and a backslash whose character is yet to come."""
_NUMBER, _TEXT, _CONTAINER = 36, 60, 100
"""Bytes that a number in a list takes at most, a short string, a small list or object."""


class Growth:
    """The memory that the objects of a JSON text take, in bytes, as far as it has come in; its strings themselves
    count for nothing, as they are no larger than the text."""

    def __init__(self) -> None:
        self.bytes = 0
        self._open = b""

    def take(self, part: bytes) -> None:
        """Count what comes next."""
        bare, strings = _STRING.subn(rb"\1\2", self._open + part)
        bare, quote, escape = bare.partition(b'"')
        self._open = quote + escape
        containers = bare.count(b"[") + bare.count(b"{")
        self.bytes += _NUMBER * bare.count(b",") + _TEXT * (strings - len(quote)) + _CONTAINER * containers


async def body_of(http: Request, limit: int) -> bytearray:
    """The body. Raises BadField as soon as it is known to be too large, or that its objects would be, and Refusal where
    there is no memory for it."""
    told = http.headers.get("content-length", "0")
    too_big = BadField("", f"the body has more than {limit} bytes", 413)
    if told.isdigit() and int(told[:19]) > limit:
        raise too_big
    body, growth = bytearray(), Growth()
    async for part in http.stream():
        body += part
        if len(body) > limit:
            raise too_big
        growth.take(part)
        if growth.bytes > MOST_BYTES:
            most = f"{MOST_BYTES >> 20} MiB"
            raise BadField("", f"the body's lists and objects would take more than {most}; send less at once")
        if len(body) > ASIDE_BYTES:
            http.state.connection.hold(2 * len(body))
    return body


async def read_body(http: Request, state: ServerState, read: Callable[[Any], T]) -> T:
    """Return the result of ``read`` on a body's JSON. Raises BadField, or Refusal where there is no memory for it."""
    body = await body_of(http, state.max_body_bytes)
    if len(body) < ASIDE_BYTES:
        return read(parse(body))
    async with state.reading:
        if await http.is_disconnected():
            raise ClientGone
        return await asyncio.to_thread(lambda: read(parse(body)))


def error_answer(refusal: Refusal) -> JSONResponse:
    """An error as an answer."""
    headers = {"Retry-After": "1"} if refusal.status == 503 else None
    return JSONResponse(error_body(refusal), refusal.status, headers)


def error_body(refusal: Refusal) -> dict[str, Any]:
    """An error in OpenAI's form, which SGLang uses, too."""
    kind = KINDS.get(refusal.status, "Error")
    error = {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.status}
    return {"object": "error", "error": error}


def internal_error(error: Exception, say: Callable[[str], None]) -> Refusal:
    """The answer to an error of ours, of which the log hears."""
    say("".join(traceback.format_exception(error)).rstrip())
    return Refusal(500, f"internal error: {type(error).__name__}")


def event(document: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _raise_error(request: ServedRequest) -> None:
    """Raise the error that a request has ended with, if it has."""
    if request.rejected is not None:
        raise Refusal(400, request.rejected)
    if request.failure is not None:
        raise Refusal(503 if request.failure is ENDING else 500, str(request.failure))


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``. Raises ClientGone, and cancels it, when the client goes away."""

    async def hang_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(hang_up())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for each in (task, gone):
            each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone


async def _finished(requests: Sequence[ServedRequest]) -> None:
    """Wait until all have ended. Raises Refusal where one has by an error."""
    for request in requests:
        while not request.done:
            await request.changed()
        _raise_error(request)


async def _begun(requests: Sequence[ServedRequest]) -> None:
    """Wait until one of them has its first token: from then on an error cannot be told by a status any more.
    Raises Refusal if one has ended with an error before."""
    waiting = [asyncio.ensure_future(request.changed()) for request in requests]
    try:
        while not any(request.done or request.first is not None for request in requests):
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
    for request in requests:
        request.news.set()  # its stream looks at once
        _raise_error(request)


class _Streamed(StreamingResponse):
    """Requests still open when the stream ends, or the client goes, are aborted."""

    def __init__(self, client: EngineClient, requests: Sequence[ServedRequest], events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._open = client, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # not in the events: of a client that is gone already they may never be begun
            _abort_all(*self._open)


def _abort_all(client: EngineClient, requests: Sequence[ServedRequest]) -> None:
    for request in requests:
        if not request.done:
            client.abort(request.wish.rid)


@dataclass(frozen=True)
class Piece:
    """The new part of an answer. ``so_far``: all text up to here. ``since``: the first token that is new."""

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

    def next(self, say: Callable[[str], None]) -> bytes | None:
        """The event of what is new, None where nothing is; the last one may be an error. ``say`` hears of ours."""
        request, growing, since = self.request, self._growing, self._told
        ids = request.output_ids
        self.done = request.done
        try:
            if request.done:
                _raise_error(request)
                return self._make(Piece(growing.finish(ids, request.matched), growing.sent, since))
            if len(ids) == since:
                return None
            self._told = len(ids)
            return self._make(Piece(growing.grow(ids), growing.sent, since))
        except Refusal as refusal:
            return event(error_body(refusal))
        except Exception as error:
            self.done = True
            return event(error_body(internal_error(error, say)))


async def merged(streams: Sequence[PiecewiseRequest], say: Callable[[str], None]) -> AsyncIterator[bytes]:
    """The events of several requests as they come."""
    news = asyncio.Event()
    for each in streams:
        each.request.news = news
    left = list(streams)
    while left:
        news.clear()
        for each in left:
            if (found := each.next(say)) is not None:
                yield found
        left = [each for each in left if not each.done]
        if left:
            await news.wait()


class Form(ABC):
    """A route's own way to read a body and to tell of its requests. One is made for each body."""

    body: AskedBody

    def __init__(self, state: ServerState) -> None:
        self.state = state

    @abstractmethod
    def read(self, data: Any) -> AskedBody:
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

    def growing(self, at: int) -> GrowingText:
        """The text of a request's output, to come."""
        own = self.body.asked[at].sampling
        return GrowingText(self.state.model, own.stops, own.skip_special, own.keep_stop)

    def text_of(self, at: int, request: ServedRequest) -> str:
        """The text of a request that has ended."""
        return self.growing(at).finish(request.output_ids, request.matched)

    async def answer(self, http: Request) -> Response:
        """Answer one body, by a document or a stream. Raises BadField, Refusal or ClientGone."""
        self.body = await read_body(http, self.state, self.read)
        requests = self.state.submit(self.body.asked, http.state.connection)
        try:
            if self.body.stream:
                await _while_connected(http, _begun(requests))
                return _Streamed(self.state.client, requests, self._stream(requests))
            await _while_connected(http, _finished(requests))
        except BaseException:
            _abort_all(self.state.client, requests)
            raise
        return JSONResponse(self.whole(requests))

    async def _stream(self, requests: Sequence[ServedRequest]) -> AsyncIterator[bytes]:
        def told(at: int, request: ServedRequest) -> PiecewiseRequest:
            return PiecewiseRequest(request, self.growing(at), lambda piece: event(self.piece(at, request, piece)))

        for each in self.opening():
            yield event(each)
        async for made in merged([told(at, request) for at, request in enumerate(requests)], self.state.say):
            yield made
        for each in self.closing(requests):
            yield event(each)
        yield DONE
