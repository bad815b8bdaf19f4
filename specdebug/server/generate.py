"""``/generate``: SGLang's own way to ask for text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from specdebug.server.answers import (
    DONE,
    abort_all,
    begun,
    body_of,
    error_body,
    event,
    finished,
    refusal_of,
    sse,
    while_connected,
)
from specdebug.server.bodies import Asked, GenerateBody, read_generate
from specdebug.server.fields import parse
from specdebug.server.served import ServedRequest
from specdebug.server.state import ServerState
from specdebug.server.text import GrowingText


async def generate(state: ServerState, http: Request) -> Response:
    """Answer one body, with one object or a list of them, or a stream. Raises BadField, Refusal or ClientGone."""
    data = parse(await body_of(http, state.settings.max_body_bytes))
    body = await asyncio.to_thread(read_generate, data, state.model, state.config.context_length)
    requests = state.submit(body.asked)
    try:
        if body.stream:
            await while_connected(http, begun(requests))
            return sse(state.client, requests, _stream(state, body, requests))
        await while_connected(http, _all(requests))
    except BaseException:
        abort_all(state.client, requests)
        raise
    answers = [answer(state, asked, request) for asked, request in zip(body.asked, requests, strict=True)]
    return JSONResponse(answers[0] if body.single else answers)


def answer(state: ServerState, asked: Asked, request: ServedRequest) -> dict[str, Any]:
    """The answer for a request that has ended."""
    matched = state.matched(request, asked)
    text = state.growing(asked).finish(request.output_ids, matched)
    return {"text": text, "output_ids": request.output_ids, "meta_info": _meta(state, asked, request, matched, 0)}


async def _all(requests: Sequence[ServedRequest]) -> None:
    for request in requests:
        await finished(request)


def _meta(
    state: ServerState, asked: Asked, request: ServedRequest, matched: int | str | None, since: int
) -> dict[str, Any]:
    """``since``: log probabilities from this token on."""
    meta = request.meta_info(matched, tree_size=state.tree_size, weight_version=state.settings.weight_version)
    return meta | logprobs_of(state, asked, request, since) if asked.wish.top_logprobs is not None else meta


def logprobs_of(state: ServerState, asked: Asked, request: ServedRequest, since: int) -> dict[str, Any]:
    """Log probabilities as SGLang has them: triples of value, token and its text, which is null unless asked for."""

    def named(value: float, token: int) -> list[Any]:
        return [value, token, state.model.decode([token], skip_special=False) if asked.text_logprobs else None]

    known = list(zip(request.output_ids, request.logprobs, strict=False))[since:]
    meta: dict[str, Any] = {
        "input_token_logprobs": [],
        "output_token_logprobs": [named(own, token) for token, (own, _) in known],
    }
    if asked.wish.top_logprobs:
        meta["input_top_logprobs"] = []
        meta["output_top_logprobs"] = [[named(value, token) for value, token in best] for _, (_, best) in known]
    return meta


async def _stream(state: ServerState, body: GenerateBody, requests: Sequence[ServedRequest]) -> AsyncIterator[bytes]:
    streams = [
        _Stream(state, asked, request, None if body.single else number)
        for number, (asked, request) in enumerate(zip(body.asked, requests, strict=True))
    ]
    if len(streams) == 1:
        async for each in streams[0].events():
            yield each
    else:
        async for each in merged([stream.events() for stream in streams]):
            yield each
    yield DONE


async def merged(sources: Sequence[AsyncIterator[bytes]]) -> AsyncIterator[bytes]:
    """What several streams give, as it comes."""
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def drain(source: AsyncIterator[bytes]) -> None:
        try:
            async for each in source:
                queue.put_nowait(each)
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


class _Stream:
    """The events of one request: text so far, or with ``incremental_output`` what is new, until it ends."""

    def __init__(self, state: ServerState, asked: Asked, request: ServedRequest, index: int | None) -> None:
        self._state, self._asked, self._request, self._index = state, asked, request, index
        self._text: GrowingText = state.growing(asked)
        self._told = 0

    async def events(self) -> AsyncIterator[bytes]:
        request = self._request
        while True:
            await request.changed()
            if refusal := refusal_of(request):
                yield event(error_body(refusal.status, str(refusal)))
                return
            ended = request.done
            piece, matched = self._grown(ended)
            if ended or len(request.output_ids) > self._told:
                yield self._event(piece, matched)
            if ended:
                return

    def _grown(self, ended: bool) -> tuple[str, int | str | None]:
        ids = self._request.output_ids
        if not ended:
            return self._text.grow(ids), None
        matched = self._state.matched(self._request, self._asked)
        return self._text.finish(ids, matched), matched

    def _event(self, piece: str, matched: int | str | None) -> bytes:
        request, incremental = self._request, self._state.settings.incremental_output
        since = self._told if incremental else 0
        document: dict[str, Any] = {
            "text": piece if incremental else self._text.sent,
            "output_ids": request.output_ids[since:],
            "meta_info": _meta(self._state, self._asked, request, matched, since),
        }
        self._told = len(request.output_ids)
        if self._index is not None:
            document["index"] = self._index
        return event(document)
