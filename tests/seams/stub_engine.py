"""An engine that specdebug does not know, and its target: what docs/engine-protocol.md asks of one, and no more.

It decodes a table of next tokens, two at a time where a draft guesses right. It keeps a slot for each token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdebug.base.abilities import Ability
from specdebug.events import Finishing, Prefilled, Stepped
from specdebug.targets.base import Asked, Opening, Session, Target, Traits
from specdebug.targets.requests import CannotBeServed, RequestView, Sampling

VOCAB = 64


class Engine:
    """The engine: knows nothing of specdebug."""

    def __init__(self, slots: int) -> None:
        self.free = list(range(slots))
        self.running: list[Running] = []

    def step(self) -> dict[str, list[int]]:
        """Give each request its next token, and the one after it where the guess for that is right."""
        given = {each.rid: self.decode(each) for each in self.running}
        for each in [each for each in self.running if each.done]:
            self.running.remove(each)
            self.release(each)
        return given

    def decode(self, request: Running) -> list[int]:
        first = next_token(request.tokens[-1])
        guess = (first + 1) % VOCAB
        room = request.most - len(request.tokens) + len(request.prompt)
        tokens = [first, next_token(first)] if guess == next_token(first) and room > 1 else [first]
        request.tokens += tokens
        request.slots += [self.free.pop() for _ in tokens]
        return tokens

    def release(self, request: Running) -> None:
        self.free += request.slots


def next_token(token: int) -> int:
    """The model."""
    return (token + 1) % VOCAB if token % 3 else (token * 7 + 5) % VOCAB


@dataclass
class Running:
    rid: str
    prompt: list[int]
    most: int
    tokens: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.tokens) - len(self.prompt) >= self.most


@dataclass
class StubRequest:
    """A request, as ``requests.RequestView``."""

    own: Running
    sampling: Sampling
    speculative: bool
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    cached_tokens: int = 0
    accept_lengths: list[int] = field(default_factory=list)

    @property
    def rid(self) -> str:
        return self.own.rid

    @property
    def prompt_ids(self) -> Sequence[int]:
        return self.own.prompt

    @property
    def output_ids(self) -> Sequence[int]:
        return self.own.tokens[len(self.own.prompt) :]

    @property
    def all_ids(self) -> Sequence[int]:
        return self.own.tokens

    @property
    def kv_len(self) -> int:
        return len(self.own.tokens) - 1


class StubTarget(Target):
    """Its options: ``slots``, how many tokens it has room for."""

    traits = Traits("stub", frozenset[Ability]({"steps", "tokens", "accept_lengths", "pools"}))

    def asked(self, options: Mapping[str, Any]) -> Asked:
        return Asked(model="tiny", drafts=True, dense=False)

    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> StubSession:
        opening.before()
        return StubSession(Engine(options.get("slots", 512)))


class StubSession(Session):
    """Steps the engine."""

    shows, vocab_size, own = StubTarget.traits.shows, VOCAB, False

    def __init__(self, engine: Engine) -> None:
        self.engine, self.slots, self.steps = engine, len(engine.free), 0
        self.requests: dict[str, StubRequest] = {}

    @property
    def has_work(self) -> bool:
        return bool(self.engine.running)

    def add(self, rid: str, prompt_ids: Sequence[int], sampling: Sampling, *, speculative: bool) -> None:
        if len(prompt_ids) + sampling.max_new_tokens > self.slots:
            raise CannotBeServed(rid, f"needs more than {self.slots} slots")
        prompt = [token % VOCAB for token in prompt_ids]
        own = Running(rid, prompt, sampling.max_new_tokens, [*prompt], [self.engine.free.pop() for _ in prompt])
        self.requests[rid] = StubRequest(own, sampling, speculative)
        self.engine.running.append(own)

    def abort(self, rid: str) -> None:
        request = self.requests[rid]
        request.finish_reason = "abort"
        if request.own in self.engine.running:
            self.engine.running.remove(request.own)
            self.engine.release(request.own)

    def advance(self) -> Stepped:
        self.steps += 1
        fresh = [each for each in self.requests.values() if not each.output_ids and each.finish_reason is None]
        emitted = self.engine.step()
        for request in fresh:
            self.observers.tell(Prefilled, request)
        for rid, tokens in emitted.items():
            self.requests[rid].accept_lengths.append(len(tokens))
        ended = [self.requests[rid] for rid in emitted if self.requests[rid].own.done]
        for request in ended:
            request.finish_reason = "length"
            self.observers.tell(Finishing, request)
        lengths = {rid: len(tokens) for rid, tokens in emitted.items()}
        rids, finished = tuple(emitted), tuple(request.rid for request in ended)
        kind = "decode" if emitted else "idle"
        return Stepped(self.steps, kind, rids, emitted, lengths, finished=finished)

    def request(self, rid: str) -> RequestView:
        return self.requests[rid]

    def check_pools(self) -> Sequence[str]:
        held = sum(len(each.slots) for each in self.engine.running)
        lost = self.slots - len(self.engine.free) - held
        return [f"conservation: {lost} of {self.slots} slots are neither free nor held"] if lost else []


TARGET = StubTarget()
