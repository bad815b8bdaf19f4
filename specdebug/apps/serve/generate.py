"""``/generate``: SGLang's own way to ask for text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from specdebug.apps.serve.bodies import AskedPrompt, GenerateBody, read_generate
from specdebug.apps.serve.served import ServedRequest
from specdebug.apps.serve.state import ServerState
from specdebug.apps.serve.streaming import Form, Piece


async def generate(state: ServerState, http: Request) -> Response:
    """Answer one body, with one object or a list of them, or a stream. Raises BadField, Refusal or ClientGone."""
    return await _Generate(state).answer(http)


class _Generate(Form[GenerateBody]):
    """Each event of a stream has all so far, or with ``incremental_output`` what is new."""

    def read(self, data: Any) -> GenerateBody:
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
        meta |= logprobs_of(self.state, self.body.asked[at], request, since)
        return {"text": text, "output_ids": request.output_ids[since:], "meta_info": meta}


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
