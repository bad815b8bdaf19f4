"""``/v1/completions`` and ``/v1/chat/completions``, as the ``openai`` client uses them."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from specdebug.apps.serve.openai_bodies import OpenAIBody, read_chat, read_completion
from specdebug.apps.serve.served import ServedRequest
from specdebug.apps.serve.state import ServerState
from specdebug.apps.serve.streaming import Form, Piece


async def completions(state: ServerState, http: Request) -> Response:
    """Complete one prompt or several. Raises BadField, Refusal or ClientGone."""
    return await _Completion(state).answer(http)


async def chat_completions(state: ServerState, http: Request) -> Response:
    """Go on with a chat. Raises BadField, Refusal or ClientGone."""
    return await _Chat(state).answer(http)


class _OpenAIForm(Form[OpenAIBody]):
    """The shared part of the two routes; each says how its body is read and how its choices look."""

    prefix = ""
    object = ""
    chunk_object = ""

    def whole(self, requests: Sequence[ServedRequest]) -> Any:
        choices = [self._made(at, each, self.text_of(at, each), 0, delta=False) for at, each in enumerate(requests)]
        return {**self._head, "choices": choices, "usage": self._usage(requests)}

    def piece(self, at: int, request: ServedRequest, piece: Piece) -> Any:
        return self._chunk(self._made(at, request, piece.text, piece.since, delta=True))

    def closing(self, requests: Sequence[ServedRequest]) -> list[Any]:
        return [{**self._chunk(), "usage": self._usage(requests)}] if self.body.usage else []

    def _chunk(self, *choices: Any) -> dict[str, Any]:
        """An event of a stream."""
        return {**self._head, "object": self.chunk_object, "choices": list(choices)}

    def _made(self, at: int, request: ServedRequest, text: str, since: int, *, delta: bool) -> dict[str, Any]:
        """The choice of a request that has ended, or with ``delta`` of what is new of it."""
        logprobs = None if self.body.top is None else self.logprobs(request, self.body.top, since)
        reason = request.finish_reason
        common = {"index": at, "logprobs": logprobs, "finish_reason": reason, "matched_stop": request.matched}
        return {**common, **self.content(text, delta=delta, ended=reason is not None)}

    @abstractmethod
    def content(self, text: str, *, delta: bool, ended: bool) -> dict[str, Any]:
        """The text of a choice, under the route's own keys."""

    @abstractmethod
    def logprobs(self, request: ServedRequest, top: int, since: int) -> dict[str, Any]:
        """The log probabilities of the tokens from ``since`` on."""

    @cached_property
    def _head(self) -> dict[str, Any]:
        """Return the fields that begin an answer and each of its chunks."""
        rid = self.body.asked[0].wish.rid
        name = self.state.settings.served_model_name
        return {"id": f"{self.prefix}-{rid}", "object": self.object, "created": int(time.time()), "model": name}

    def _usage(self, requests: Sequence[ServedRequest]) -> dict[str, Any]:
        """The tokens of all choices; a prompt counts once, however many samples of it there are."""
        prompt = sum(len(request.wish.ids) for request in requests[:: self.body.samples])
        output = sum(len(request.output_ids) for request in requests)
        cached = sum(request.cached_tokens for request in requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which clients may call the model."""
        return (self.state.settings.served_model_name, self.state.config.model, "default")

    def token(self) -> Callable[[int], str]:
        """One token as text."""
        return lambda token: self.state.model.decode([token], skip_special=False)


class _Completion(_OpenAIForm):
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


class _Chat(_OpenAIForm):
    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def read(self, data: Any) -> OpenAIBody:
        return read_chat(data, self.state.model, self.names, self.state.config.context_length, self.state.chat)

    def opening(self) -> list[Any]:
        rest = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return [self._chunk({"index": at, **rest, "matched_stop": None}) for at in range(len(self.body.asked))]

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
