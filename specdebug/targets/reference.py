"""The dense reference model as a target: plain decoding, one token a request and step, no pages, cache or draft."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specdebug.base.errors import CheckpointError, SpecDebugError
from specdebug.events import Finishing, Prefilled, Stepped
from specdebug.targets.base import Asked, Opening, Session, Target, Traits
from specdebug.targets.requests import CannotBeServed, RequestView, Sampling

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from specdebug.engine.model.tokenizer import TargetTokenizer
    from specdebug.reference.config import ModelConfig
    from specdebug.reference.target import DenseCache

_weights: dict[str, tuple[Any, ModelConfig]] = {}


class ReferenceTarget(Target):
    """``specdebug.reference`` on the CPU, in float32."""

    traits = Traits("reference", frozenset({"steps", "tokens", "plain", "logits"}))

    def asked(self, options: Mapping[str, Any]) -> Asked:
        model = options.get("model", "tiny")
        if not isinstance(model, str):
            raise SpecDebugError("engine.model must be text")
        _running(options)
        memory = options.get("memory")
        return Asked(
            model,
            drafts=options.get("speculative") is not None,
            guards=isinstance(memory, Mapping) and bool(memory.get("guards")),
            unused=tuple(name for name in options if name not in ("model", "max_running_requests")),
        )

    def warm(self, options: Mapping[str, Any]) -> None:
        _load(self.asked(options).model)

    def cool(self) -> None:
        _weights.clear()

    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> ReferenceSession:
        from specdebug.workers.stack import arithmetic, versions

        asked = self.asked(options)
        facts = {"device": asked.device, "name": "CPU", **versions(), "dtype": asked.dtype}
        opening.say("stack", **facts, backend="dense", executor="torch reference", arithmetic=arithmetic())
        opening.before()
        return ReferenceSession(asked.model, _running(options), seed)


@dataclass
class _Decoded:
    """A request and its keys and values; without room until it is first computed."""

    rid: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    output_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    speculative: bool = False
    cached_tokens: int = 0
    accept_lengths: tuple[int, ...] = ()
    cache: DenseCache | None = None
    generator: torch.Generator | None = None

    @property
    def all_ids(self) -> Sequence[int]:
        return [*self.prompt_ids, *self.output_ids]

    @property
    def kv_len(self) -> int:
        return 0 if self.cache is None else self.cache.length


class ReferenceSession(Session):
    """Serves the oldest ``max_running`` requests: a step computes the prompts of the new ones, else a token of each."""

    shows = ReferenceTarget.traits.shows

    def __init__(self, model: str, max_running: int, seed: int) -> None:
        """Raises CheckpointError."""
        self._weights, self._config = _load(model)
        self.vocab_size = self._config.vocab_size
        self._model = model
        self._tokenizer: TargetTokenizer | None = None
        self._max_running = max_running
        self._seed = seed
        self._requests: dict[str, _Decoded] = {}
        self._waiting: list[_Decoded] = []
        self._running: list[_Decoded] = []
        self._step = 0

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def clock(self) -> float:
        return time.process_time()

    def add(self, rid: str, prompt_ids: Sequence[int], sampling: Sampling, *, speculative: bool) -> None:
        """Queue a request; ``speculative`` means nothing here. Raises CannotBeServed."""
        import torch

        if rid in self._requests:
            raise CannotBeServed(rid, "exists already")
        if not prompt_ids or not 0 <= min(prompt_ids) <= max(prompt_ids) < self.vocab_size:
            raise CannotBeServed(rid, f"has no prompt of token ids in [0, {self.vocab_size})")
        if sampling.stop and self._tokenizer is None:
            from specdebug.base.assets import tokenizer_path
            from specdebug.engine.model.tokenizer import TargetTokenizer

            try:
                self._tokenizer = TargetTokenizer(tokenizer_path(self._model))
            except CheckpointError as error:
                raise CannotBeServed(rid, f"has stop strings, and they need a tokenizer: {error}") from None
        request = _Decoded(rid, tuple(prompt_ids), sampling)
        if sampling.temperature > 0:
            request.generator = torch.Generator().manual_seed((self._seed * 1_000_003 + sampling.seed) % 2**63)
        self._requests[rid] = request
        self._waiting.append(request)

    def abort(self, rid: str) -> None:
        request = self._requests[rid]
        if request.finish_reason is None:
            self._end(request, "abort")

    def advance(self) -> Stepped:
        import torch

        self._step += 1
        room = self._max_running - len(self._running)
        new, self._waiting = self._waiting[:room], self._waiting[room:]
        batch = new or list(self._running)
        self._running += new
        if not batch:
            return Stepped(self._step, "idle")
        with torch.inference_mode():
            emitted = {request.rid: [self._next(request)] for request in batch}
        for request in batch:
            self._told(request, prefilled=bool(new))
        finished = tuple(request.rid for request in batch if request.finish_reason is not None)
        return Stepped(self._step, "prefill" if new else "decode", tuple(emitted), emitted, finished=finished)

    def request(self, rid: str) -> RequestView:
        return self._requests[rid]

    def _next(self, request: _Decoded) -> int:
        import torch

        from specdebug.reference.target import DenseCache, target_forward

        if request.cache is None:
            length = len(request.prompt_ids) + request.sampling.max_new_tokens
            request.cache = DenseCache(self._config, length, batch=(1,))
        new = torch.tensor([list(request.all_ids)[request.cache.length :]])
        logits, _, _ = target_forward(self._weights, self._config, new, cache=request.cache)
        token = choose(logits[0, -1], request.sampling, request.generator)
        request.output_ids.append(token)
        return token

    def _told(self, request: _Decoded, *, prefilled: bool) -> None:
        if prefilled:
            self.observers.tell(Prefilled, request)
        request.matched_stop = self._stop_at_end(request)
        if request.matched_stop is not None or len(request.output_ids) == request.sampling.max_new_tokens:
            request.finish_reason = "length" if request.matched_stop is None else "stop"
            self.observers.tell(Finishing, request)
            self._end(request, request.finish_reason)

    def _stop_at_end(self, request: _Decoded) -> int | str | None:
        last, sampling = request.output_ids[-1], request.sampling
        if last in sampling.stop_token_ids:
            return last
        if not sampling.stop or self._tokenizer is None:
            return None
        text = self._tokenizer.decode(request.output_ids)
        return next((string for string in sampling.stop if string in text), None)

    def _end(self, request: _Decoded, reason: str) -> None:
        request.finish_reason, request.cache = reason, None
        for queue in (self._waiting, self._running):
            if request in queue:
                queue.remove(request)


def choose(logits: Tensor, sampling: Sampling, generator: torch.Generator | None) -> int:
    """A token of logits [V]: the greatest at temperature 0, else drawn from what ``top_k`` and ``top_p`` leave."""
    import torch

    if sampling.temperature == 0:
        return int(logits.argmax())
    from specdebug.reference.sampling import kept_probs

    probs, order = kept_probs(logits, sampling.temperature, sampling.top_k, sampling.top_p)
    return int(order[torch.multinomial(probs, 1, generator=generator)])


def _running(options: Mapping[str, Any]) -> int:
    count = options.get("max_running_requests", 8)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SpecDebugError("engine.max_running_requests must be a whole number of at least 1")
    return count


def _load(model: str) -> tuple[Any, ModelConfig]:
    from specdebug.base.assets import checkpoint_path
    from specdebug.reference.weights import load_weights

    if model not in _weights:
        _weights[model] = load_weights(checkpoint_path(model))
    return _weights[model]


TARGET = ReferenceTarget()
