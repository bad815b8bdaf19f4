"""What answers share: errors as JSON, server-sent events, the wait for a request, and a client that goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from specdebug.apps.serve.client import EngineClient
from specdebug.apps.serve.failure import ENDING
from specdebug.apps.serve.fields import BadField
from specdebug.apps.serve.served import ServedRequest

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


class Refusal(Exception):
    """A request that ends with an error, before anything of its answer was sent."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def response(self) -> JSONResponse:
        """The error as an answer."""
        headers = {"Retry-After": "1"} if self.status == 503 else None
        return JSONResponse(error_body(self.status, str(self), self.param), self.status, headers)


class ClientGone(Exception):
    """The client does not wait for the answer any more."""


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's form, which SGLang uses, too. ``param``: the field at fault."""
    error = {"message": message, "type": KINDS.get(status, "Error"), "param": param, "code": status}
    return {"object": "error", "error": error}


def refusal_of(request: ServedRequest) -> Refusal | None:
    """The error that a request has ended with, if it has."""
    if request.rejected is not None:
        return Refusal(400, request.rejected)
    if request.failure is not None:
        return Refusal(503 if request.failure is ENDING else 500, str(request.failure))
    return None


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``. Raises ClientGone, and cancels it, when the client goes away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
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


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def all_finished(requests: Sequence[ServedRequest]) -> None:
    """Wait until all have ended. Raises Refusal where one has by an error."""
    for request in requests:
        while not request.done:
            await request.changed()
        if refusal := refusal_of(request):
            raise refusal


async def begun(requests: Sequence[ServedRequest]) -> None:
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
        request.tell()  # its stream looks at once
        if refusal := refusal_of(request):
            raise refusal


def event(document: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def sse(client: EngineClient, requests: Sequence[ServedRequest], events: AsyncIterator[bytes]) -> Response:
    """The answer that streams ``events``; requests still open when it ends, or the client goes, are aborted."""
    return _Streamed(client, requests, events)


class _Streamed(StreamingResponse):
    def __init__(self, client: EngineClient, requests: Sequence[ServedRequest], events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._open = client, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # not in the events: of a client that is gone already they may never be begun
            abort_all(*self._open)


def abort_all(client: EngineClient, requests: Sequence[ServedRequest]) -> None:
    """Abort those that have not ended."""
    for request in requests:
        if not request.done:
            client.abort(request.wish.rid)


def as_refusal(error: BadField) -> Refusal:
    """A bad field as an answer."""
    return Refusal(error.status, str(error), error.field or None)
