"""A request's output as it comes: text in pieces that make up the whole, and the tokens that they are of."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from specdebug.server.answers import Refusal, error_body, event, refusal_of
from specdebug.server.bodies import AskedPrompt
from specdebug.server.served import ServedRequest
from specdebug.server.state import ServerState


@dataclass(frozen=True)
class Piece:
    """What is new. ``so_far``: all text up to here. ``since``: the first token that is new."""

    text: str
    so_far: str
    since: int


async def pieces(state: ServerState, asked: AskedPrompt, request: ServedRequest) -> AsyncIterator[Piece]:
    """The pieces of a request, until it ends. Raises Refusal where it ends with an error."""
    growing = state.growing(asked)
    told = 0
    while True:
        await request.changed()
        if refusal := refusal_of(request):
            raise refusal
        ids = request.output_ids
        if request.done:
            yield Piece(growing.finish(ids, request.matched), growing.sent, told)
            return
        if len(ids) > told:
            since, told = told, len(ids)
            yield Piece(growing.grow(ids), growing.sent, since)


async def merged(sources: Sequence[AsyncIterator[bytes]], say: Callable[[str], None]) -> AsyncIterator[bytes]:
    """The events of several requests as they come. One that ends with an error has that as its last event; ``say``
    hears of one that is ours."""
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def drain(source: AsyncIterator[bytes]) -> None:
        try:
            async for each in source:
                queue.put_nowait(each)
        except Refusal as refusal:
            queue.put_nowait(event(error_body(refusal.status, str(refusal))))
        except Exception as error:
            say("".join(traceback.format_exception(error)).rstrip())
            queue.put_nowait(event(error_body(500, f"internal error: {type(error).__name__}")))
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(drain(source)) for source in sources]
    try:
        left = len(tasks)
        while left:
            each = await queue.get()
            if each is None:
                left -= 1
            else:
                yield each
    finally:
        for task in tasks:
            task.cancel()
