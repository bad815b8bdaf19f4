"""The routes that generate: ``/generate``, SGLang's own, and OpenAI's two as the ``openai`` client uses them."""

import time
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from specdebug.apps.serve.answers import Form, Piece
from specdebug.apps.serve.bodies import AskedBody, AskedPrompt, read_chat, read_completion, read_generate
from specdebug.apps.serve.requests import ServedRequest
from specdebug.apps.serve.state import ServerState


class Generate(Form):
    """Each event of a stream has all so far, or with ``incremental_output`` what is new."""

    def read(self, data: Any) -> AskedBody:
        return read_generate(data, self.state.model, self.state.config.context_length)

    def whole(self, requests: Sequence[ServedRequest]) -> Any:
        answers = [self._told(at, each, self.text_of(at, each), 0) for at, each in enumerate(requests)]
        return answers[0] if self.body.single else answers

    def piece(self, at: int, request: ServedRequest, piece: Piece) -> Any:
        incremental = self.state.settings.incremental_output
        text, since = (piece.text, piece.since) if incremental else (piece.so_far, 0)
        told = self._told(at, request, text, since)
        return told if self.body.single else told | {"index": at}

    def _told(self, at: int, request: ServedRequest, text: str, since: int) -> dict[str, Any]:
        """``since``: tokens and log probabilities from this one on."""
        meta = request.meta_info(tree_size=self.state.tree_size, weight_version=self.state.settings.weight_version)
        meta |= _logprobs_of(self.state, self.body.asked[at], request, since)
        return {"text": text, "output_ids": request.output_ids[since:], "meta_info": meta}


def _logprobs_of(state: ServerState, asked: AskedPrompt, request: ServedRequest, since: int) -> dict[str, Any]:
    """Log probabilities as SGLang has them: triples of value, token and its text, which is null unless asked for. Of
    the prompt the first token that is told of has none."""
    wish = asked.wish.logprobs
    if wish is None:
        return {}

    def named(value: float | None, token: int) -> list[Any]:
        return [value, token, state.model.token(token) if asked.text_logprobs else None]

    prompt = [] if wish.start is None else list(asked.wish.ids)[wish.start :]
    before = list(zip(prompt[1:], request.prompt_logprobs, strict=False))
    after = list(zip(request.output_ids, request.logprobs, strict=False))[since:]
    meta: dict[str, Any] = {}
    for side, first, known in (("input", prompt[:1], before), ("output", [], after)):
        own = [named(value, token) for token, (value, _, _) in known]
        meta[f"{side}_token_logprobs"] = [named(None, token) for token in first] + own
        nothing: list[Any] = [None] * len(first)
        if wish.top:
            best = [[named(value, token) for value, token in top] for _, (_, top, _) in known]
            meta[f"{side}_top_logprobs"] = nothing + best
        if wish.ids:
            chosen = [[named(*pair) for pair in zip(values, wish.ids, strict=True)] for _, (_, _, values) in known]
            meta[f"{side}_token_ids_logprobs"] = nothing + chosen
    return meta


class _OpenAIForm(Form):
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
        rid, name = self.body.asked[0].wish.rid, self.state.settings.served_model_name
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


class Completion(_OpenAIForm):
    """``/v1/completions``."""

    prefix, object, chunk_object = "cmpl", "text_completion", "text_completion"

    def read(self, data: Any) -> AskedBody:
        return read_completion(data, self.state.model, self.names, self.state.config.context_length)

    def content(self, text: str, *, delta: bool, ended: bool) -> dict[str, Any]:
        return {"text": text}

    def logprobs(self, request: ServedRequest, top: int, since: int) -> dict[str, Any]:
        name = self.state.model.token
        tokens = [name(token) for token in request.output_ids]
        known = request.logprobs[since:]
        return {
            "tokens": tokens[since:],
            "token_logprobs": [own for own, _, _ in known],
            "top_logprobs": [{name(token): value for value, token in best} for _, best, _ in known] if top else [],
            "text_offset": [sum(map(len, tokens[:at])) for at in range(since, len(tokens))],
        }


class Chat(_OpenAIForm):
    """``/v1/chat/completions``."""

    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def read(self, data: Any) -> AskedBody:
        return read_chat(data, self.state.model, self.names, self.state.config.context_length, self.state.chat)

    def opening(self) -> list[Any]:
        rest = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return [self._chunk({"index": at, **rest, "matched_stop": None}) for at in range(len(self.body.asked))]

    def content(self, text: str, *, delta: bool, ended: bool) -> dict[str, Any]:
        if delta:
            return {"delta": {"content": text} if text or not ended else {}}
        return {"message": {"role": "assistant", "content": text, "tool_calls": None}}

    def logprobs(self, request: ServedRequest, top: int, since: int) -> dict[str, Any]:
        def told(token: int, value: float) -> dict[str, Any]:
            text = self.state.model.token(token)
            return {"token": text, "logprob": value, "bytes": list(text.encode())}

        known = list(zip(request.output_ids, request.logprobs, strict=False))[since:]
        content = [
            told(token, own) | {"top_logprobs": [told(other, value) for value, other in best]}
            for token, (own, best, _) in known
        ]
        return {"content": content}
