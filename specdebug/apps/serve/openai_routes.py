"""``/v1/completions`` and ``/v1/chat/completions``, as the ``openai`` client uses them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from specdebug.apps.serve.answers import DONE, abort_all, begun, event, finished, sse, while_connected
from specdebug.apps.serve.bodies import AskedPrompt
from specdebug.apps.serve.openai_bodies import OpenAIBody, read_chat, read_completion
from specdebug.apps.serve.reading import read_body
from specdebug.apps.serve.served import ServedRequest
from specdebug.apps.serve.state import ServerState
from specdebug.apps.serve.streaming import Piece, PiecewiseRequest, merged


async def completions(state: ServerState, http: Request) -> Response:
    """Complete one prompt or several. Raises BadField, Refusal or ClientGone."""
    return await _answer(state, http, _Completion(state))


async def chat_completions(state: ServerState, http: Request) -> Response:
    """Go on with a chat. Raises BadField, Refusal or ClientGone."""
    return await _answer(state, http, _Chat(state))


async def _answer(state: ServerState, http: Request, form: _Form) -> Response:
    body = await read_body(http, state, form.read)
    requests = state.submit(body.asked, http.state.connection)
    pairs = list(zip(body.asked, requests, strict=True))
    head = form.head(body)
    try:
        if body.stream:
            await while_connected(http, begun(requests))
            return sse(state.client, requests, _stream(form, head, body, pairs))
        for request in requests:
            await while_connected(http, finished(request))
    except BaseException:
        abort_all(state.client, requests)
        raise
    choices = [form.choice(at, body, asked, request) for at, (asked, request) in enumerate(pairs)]
    return JSONResponse({**head, "choices": choices, "usage": _usage(requests, body.samples)})


async def _stream(
    form: _Form, head: dict[str, Any], body: OpenAIBody, pairs: Sequence[tuple[AskedPrompt, ServedRequest]]
) -> AsyncIterator[bytes]:
    head = {**head, "object": form.chunk_object}

    def told(at: int, asked: AskedPrompt, request: ServedRequest) -> PiecewiseRequest:
        def make(piece: Piece) -> bytes:
            return event({**head, "choices": [form.delta(at, body, request, piece)]})

        return PiecewiseRequest(request, form.state.growing(asked), make)

    for choice in [choice for at in range(len(pairs)) for choice in form.opening(at)]:
        yield event({**head, "choices": [choice]})
    async for each in merged([told(at, *pair) for at, pair in enumerate(pairs)], form.state.say):
        yield each
    if body.usage:
        yield event({**head, "choices": [], "usage": _usage([request for _, request in pairs], body.samples)})
    yield DONE


def _usage(requests: Sequence[ServedRequest], samples: int) -> dict[str, Any]:
    """The tokens of all choices; a prompt counts once, however many ``samples`` of it there are."""
    prompt = sum(len(request.wish.ids) for request in requests[::samples])
    output = sum(len(request.output_ids) for request in requests)
    cached = sum(request.cached_tokens for request in requests)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


@dataclass(frozen=True)
class _Form(ABC):
    """What the two routes have in common; each says how its body is read and how its choices look."""

    state: ServerState
    prefix = ""
    object = ""
    chunk_object = ""

    @abstractmethod
    def read(self, data: Any) -> OpenAIBody:
        """Read the body of a request. Raises BadField."""

    def opening(self, index: int) -> list[dict[str, Any]]:
        """Choices that a stream begins with."""
        return []

    def choice(self, index: int, body: OpenAIBody, asked: AskedPrompt, request: ServedRequest) -> dict[str, Any]:
        """The choice of a request that has ended."""
        text = self.state.growing(asked).finish(request.output_ids, request.matched)
        return self.made(index, body, request, text, 0, delta=False)

    def delta(self, index: int, body: OpenAIBody, request: ServedRequest, piece: Piece) -> dict[str, Any]:
        """The choice of a piece."""
        return self.made(index, body, request, piece.text, piece.since, delta=True)

    def made(
        self, index: int, body: OpenAIBody, request: ServedRequest, text: str, since: int, *, delta: bool
    ) -> dict[str, Any]:
        logprobs = None if body.top is None else self.logprobs(request, body.top, since)
        reason = request.finish_reason
        common = {"index": index, "logprobs": logprobs, "finish_reason": reason, "matched_stop": request.matched}
        return {**common, **self.content(text, delta=delta, ended=reason is not None)}

    @abstractmethod
    def content(self, text: str, *, delta: bool, ended: bool) -> dict[str, Any]:
        """The text of a choice, under the route's own keys."""

    @abstractmethod
    def logprobs(self, request: ServedRequest, top: int, since: int) -> dict[str, Any]:
        """The log probabilities of the tokens from ``since`` on."""

    def head(self, body: OpenAIBody) -> dict[str, Any]:
        """What an answer and each of its chunks begin with."""
        rid = body.asked[0].wish.rid
        name = self.state.settings.served_model_name
        return {"id": f"{self.prefix}-{rid}", "object": self.object, "created": int(time.time()), "model": name}

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which clients may call the model."""
        return (self.state.settings.served_model_name, self.state.config.model, "default")

    def token(self) -> Callable[[int], str]:
        """One token as text."""
        return lambda token: self.state.model.decode([token], skip_special=False)


class _Completion(_Form):
    prefix, object, chunk_object = "cmpl", "text_completion", "text_completion"

    def read(self, data: Any) -> OpenAIBody:
        return read_completion(data, self.state.model, self.names, self.state.config.context_length)

    def content(self, text: str, *, delta: bool, ended: bool) -> dict[str, Any]:
        return {"text": text}

    def logprobs(self, request: ServedRequest, top: int, since: int) -> dict[str, Any]:
        name = self.token()
        tokens = [name(token) for token in request.output_ids]
        known = request.logprobs[since:]
        offsets = [sum(map(len, tokens[:at])) for at in range(since, len(tokens))]
        return {
            "tokens": tokens[since:],
            "token_logprobs": [own for own, _, _ in known],
            "top_logprobs": [{name(token): value for value, token in best} for _, best, _ in known] if top else [],
            "text_offset": offsets,
        }


class _Chat(_Form):
    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def read(self, data: Any) -> OpenAIBody:
        return read_chat(data, self.state.model, self.names, self.state.config.context_length, self.state.chat)

    def opening(self, index: int) -> list[dict[str, Any]]:
        first = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": first, "logprobs": None, "finish_reason": None, "matched_stop": None}]

    def content(self, text: str, *, delta: bool, ended: bool) -> dict[str, Any]:
        if delta:
            return {"delta": {"content": text} if text or not ended else {}}
        return {"message": {"role": "assistant", "content": text, "tool_calls": None}}

    def logprobs(self, request: ServedRequest, top: int, since: int) -> dict[str, Any]:
        name = self.token()

        def told(token: int, value: float) -> dict[str, Any]:
            text = name(token)
            return {"token": text, "logprob": value, "bytes": list(text.encode())}

        known = list(zip(request.output_ids, request.logprobs, strict=False))[since:]
        content = [
            told(token, own) | {"top_logprobs": [told(other, value) for value, other in best]}
            for token, (own, best, _) in known
        ]
        return {"content": content}
