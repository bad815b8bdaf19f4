"""``/generate``: SGLang's own way to ask for text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from specdebug.apps.serve.answers import (
    DONE,
    abort_all,
    begun,
    event,
    finished,
    sse,
    while_connected,
)
from specdebug.apps.serve.bodies import AskedPrompt, GenerateBody, read_generate
from specdebug.apps.serve.reading import read_body
from specdebug.apps.serve.served import ServedRequest
from specdebug.apps.serve.state import ServerState
from specdebug.apps.serve.streaming import Piece, PiecewiseRequest, merged


async def generate(state: ServerState, http: Request) -> Response:
    """Answer one body, with one object or a list of them, or a stream. Raises BadField, Refusal or ClientGone."""
    body = await read_body(http, state, lambda data: read_generate(data, state.model, state.config.context_length))
    requests = state.submit(body.asked, http.state.connection)
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


def answer(state: ServerState, asked: AskedPrompt, request: ServedRequest) -> dict[str, Any]:
    """The answer for a request that has ended."""
    text = state.growing(asked).finish(request.output_ids, request.matched)
    return {"text": text, "output_ids": request.output_ids, "meta_info": _meta(state, asked, request, 0)}


async def _all(requests: Sequence[ServedRequest]) -> None:
    for request in requests:
        await finished(request)


def _meta(state: ServerState, asked: AskedPrompt, request: ServedRequest, since: int) -> dict[str, Any]:
    """``since``: log probabilities from this token on."""
    meta = request.meta_info(tree_size=state.tree_size, weight_version=state.settings.weight_version)
    return meta | logprobs_of(state, asked, request, since)


def logprobs_of(state: ServerState, asked: AskedPrompt, request: ServedRequest, since: int) -> dict[str, Any]:
    """Log probabilities as SGLang has them: triples of value, token and its text, which is null unless asked for. Of
    the prompt the first token that is told of has none."""
    wish = asked.wish.logprobs
    if wish is None:
        return {}

    def named(value: float | None, token: int) -> list[Any]:
        return [value, token, state.model.decode([token], skip_special=False) if asked.text_logprobs else None]

    prompt = [] if wish.start is None else list(asked.wish.ids)[wish.start :]
    before = list(zip(prompt[1:], request.prompt_logprobs, strict=False))
    after = list(zip(request.output_ids, request.logprobs, strict=False))[since:]
    meta: dict[str, Any] = {
        "input_token_logprobs": [named(None, token) for token in prompt[:1]]
        + [named(own, token) for token, (own, _, _) in before],
        "output_token_logprobs": [named(own, token) for token, (own, _, _) in after],
    }
    nothing: list[None] = [None] * len(prompt[:1])
    for side, known in (("input", before), ("output", after)):
        first = nothing if side == "input" else []
        if wish.top:
            best = [[named(value, token) for value, token in top] for _, (_, top, _) in known]
            meta[f"{side}_top_logprobs"] = [*first, *best]
        if wish.ids:
            own = [
                [named(value, token) for value, token in zip(values, wish.ids, strict=True)]
                for _, (_, _, values) in known
            ]
            meta[f"{side}_token_ids_logprobs"] = [*first, *own]
    return meta


async def _stream(state: ServerState, body: GenerateBody, requests: Sequence[ServedRequest]) -> AsyncIterator[bytes]:
    pairs = zip(body.asked, requests, strict=True)
    streams = [_told(state, asked, request, None if body.single else at) for at, (asked, request) in enumerate(pairs)]
    async for each in merged(streams, state.say):
        yield each
    yield DONE


def _told(state: ServerState, asked: AskedPrompt, request: ServedRequest, index: int | None) -> PiecewiseRequest:
    """The events of one request: all so far in each, or with ``incremental_output`` what is new."""
    incremental = state.settings.incremental_output

    def make(piece: Piece) -> bytes:
        since = piece.since if incremental else 0
        document: dict[str, Any] = {
            "text": piece.text if incremental else piece.so_far,
            "output_ids": request.output_ids[since:],
            "meta_info": _meta(state, asked, request, since),
        }
        return event(document if index is None else document | {"index": index})

    return PiecewiseRequest(request, state.growing(asked), make)
