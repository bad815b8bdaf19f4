"""From a scenario's groups to the very requests: ids, prompt tokens, sampling, arrival and abort rules.

Everything random is drawn from a stream named after the request, so the plan is a function of scenario, tokenizer and
seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdebug.base.errors import CheckpointError, ContentError, SpecDebugError
from specdebug.base.features import NONE, Features
from specdebug.base.trial import derive_seed, stream
from specdebug.base.yamlio import one_line
from specdebug.patching.toggles import Toggle
from specdebug.scenario.grammar import (
    CorpusPrompt,
    Scenario,
    SharedPrefixPrompt,
    SimplePrompt,
    Span,
    TextPrompt,
    TokenPrompt,
    WorkloadGroup,
)


@dataclass(frozen=True)
class Common:
    """The share of all the arms to come of a scenario. ``toggles``: the fixes that any of them may revert."""

    scenario: Scenario
    arms: tuple[str, ...]
    toggles: tuple[Toggle, ...]


@dataclass(frozen=True)
class Foreseen:
    """A run that many to come are like: the same requests, served with little difference."""

    scenario: Scenario
    arm: str
    seed: int


CHARS_PER_TOKEN = 5  # first guess of a window's length; a window that proves short is doubled
MARGIN_TOKENS = 64  # more tokens than the longest unbroken word of a line of source makes
_DRAWS = 8


class CorpusTooShort(SpecDebugError):
    """A slice asks for more tokens than the corpus has."""


class Slicer:
    """Cuts slices from one text. ``encode`` gives token ids of a text, without special tokens."""

    def __init__(self, name: str, text: str, encode: Callable[[str], Sequence[int]]) -> None:
        self._name = name
        self._text = text
        self._encode = encode
        self._head: Sequence[int] = ()
        self._head_is_all = False

    def at(self, offset: int, tokens: int) -> tuple[int, ...]:
        """Tokens ``offset .. offset + tokens`` of the text. Raises CorpusTooShort."""
        if len(self._head) < offset + tokens and not self._head_is_all:
            self._head, self._head_is_all = self._window(0, offset + tokens)
        found = tuple(self._head[offset : offset + tokens])
        if len(found) < tokens:
            raise CorpusTooShort(
                f"the corpus '{self._name}' has {len(self._head)} tokens, too few for {tokens} from offset {offset}"
            )
        return found

    def draw(self, rng: random.Random, tokens: int) -> tuple[int, ...]:
        """``tokens`` tokens from the start of a line drawn by ``rng``. A line too near the text's end is drawn again
        from its first half, then quarter and so on, at last the start. Raises CorpusTooShort."""
        for draw in range(_DRAWS):
            position = rng.randrange((len(self._text) >> draw) + 1)
            window, _ = self._window(self._text.rfind("\n", 0, position) + 1, tokens)
            if len(window) >= tokens:
                return tuple(window[:tokens])
        return self.at(0, tokens)

    def _window(self, start: int, tokens: int) -> tuple[Sequence[int], bool]:
        """At least ``tokens`` tokens from character ``start``; fewer, and True, where the text ends."""
        length = (tokens + MARGIN_TOKENS) * CHARS_PER_TOKEN
        while True:
            ids = self._encode(self._text[start : start + length])
            if start + length >= len(self._text):
                return ids, True
            if len(ids) >= tokens + MARGIN_TOKENS:
                return ids[: len(ids) - MARGIN_TOKENS], False
            length *= 2


Tokens = tuple[int, ...]


@dataclass(frozen=True)
class RequestSampling:
    """Sampling parameters of one request, named as the engine's ``SamplingParams`` names them."""

    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: Tokens = ()
    stop: tuple[str, ...] = ()
    seed: int = 0
    features: Features = NONE


@dataclass(frozen=True)
class WorkloadRequest:
    """One request to come.

    ``new_ids`` is the whole prompt, or, when ``continues`` names a request, what follows that one's prompt and output.
    ``delay`` counts steps from the start of its group and is void for a continuation, which arrives as soon as the
    request it continues has finished. ``abort_after`` counts steps from its arrival.
    ``flush``: the cache is flushed right before it comes.
    """

    rid: str
    group: str
    new_ids: Tokens
    sampling: RequestSampling
    speculative: bool = True
    continues: str | None = None
    delay: int = 0
    abort_after: int | None = None
    flush: bool = False


@dataclass(frozen=True)
class Workload:
    """The requests of a scenario, and by group those that must have finished before it starts."""

    requests: tuple[WorkloadRequest, ...]
    after: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Arrival:
    """A request that arrives now, with its whole prompt. ``flush``: the cache is to be flushed before."""

    rid: str
    group: str
    prompt_ids: tuple[int, ...]
    sampling: RequestSampling
    speculative: bool
    flush: bool = False


def expand(scenario: Scenario, tokenizer: Any, seed: int | None = None) -> Workload:
    """Plan every request of ``scenario``; ``seed`` replaces its own. The target's ``tokenizers.Tokenizer`` adds no
    special tokens: counts are exact. Raises ContentError at the group that asks for more corpus than there is."""
    expander = _Expander(scenario, tokenizer, scenario.seed if seed is None else seed)
    requests = [request for index in range(len(scenario.workload)) for request in expander.group(index)]
    return Workload(tuple(requests), {group.id: group.arrive.after for group in scenario.workload})


class _Expander:
    def __init__(self, scenario: Scenario, tokenizer: Any, seed: int) -> None:
        self._scenario = scenario
        self._tokenizer = tokenizer
        self._seed = seed
        self._slicers: dict[str, Slicer] = {}
        self._prefixes: dict[tuple[str, str], Tokens] = {}

    def group(self, index: int) -> list[WorkloadRequest]:
        group = self._scenario.workload[index]
        try:
            return [self._planned(group, number, rid) for number, rid in enumerate(group.rids)]
        except CorpusTooShort as error:
            raise ContentError(str(error), self._scenario.where("workload", index)) from None

    def _planned(self, group: WorkloadGroup, number: int, rid: str) -> WorkloadRequest:
        number, completion = divmod(number, group.features.n)
        asking = rid if group.features.n == 1 else f"{group.id}.{number}"
        client, this_round = (number, 0) if group.turns is None else divmod(number, group.turns.rounds)
        arrive, abort = group.arrive, group.abort
        aborted = abort is not None and (abort.requests is None or number in abort.requests)
        seed = derive_seed(self._seed, "sampling", asking) if group.seed is None else group.seed + number
        sampling = RequestSampling(
            max_new_tokens=self._draw(group.max_new_tokens, "max_new_tokens", asking),
            temperature=group.temperature,
            top_k=group.top_k,
            top_p=group.top_p,
            stop_token_ids=group.stop_token_ids,
            stop=group.stop,
            seed=(seed + completion) % 2**64,
            features=group.features,
        )
        return WorkloadRequest(
            rid=rid,
            group=group.id,
            new_ids=self._prompt(group, asking),
            sampling=sampling,
            speculative=group.speculative,
            continues=f"{group.id}.{client}.{this_round - 1}" if this_round else None,
            delay=arrive.step + client * arrive.every + self._draw((0, arrive.jitter), "arrive", asking),
            abort_after=abort.after_steps if abort is not None and aborted else None,
            flush=arrive.flush and number == completion == 0,
        )

    def _prompt(self, group: WorkloadGroup, rid: str) -> Tokens:
        prompt = group.prompt if group.turns is None else CorpusPrompt(group.turns.input_tokens, group.turns.corpus)
        if isinstance(prompt, SharedPrefixPrompt):
            key = ("group", group.id) if prompt.name is None else ("name", prompt.name)
            if key not in self._prefixes:
                self._prefixes[key] = self._simple(prompt.prefix, "prefix", *key)
            return self._prefixes[key] + self._simple(prompt.suffix, "prompt", rid)
        if prompt is None:
            raise ValueError(f"group {group.id} has neither prompt nor turns")
        return self._simple(prompt, "prompt", rid)

    def _simple(self, prompt: SimplePrompt, *stream_name: str) -> Tokens:
        if isinstance(prompt, TextPrompt):
            return tuple(self._encode(prompt.text))
        if isinstance(prompt, TokenPrompt):
            return prompt.token_ids
        rng = stream(self._seed, *stream_name)
        tokens = rng.randint(*prompt.tokens)
        slicer = self._slicer(prompt.corpus)
        return slicer.draw(rng, tokens) if prompt.offset is None else slicer.at(prompt.offset, tokens)

    def _draw(self, span: Span, *stream_name: str) -> int:
        return span[0] if span[0] == span[1] else stream(self._seed, *stream_name).randint(*span)

    def _slicer(self, corpus: str) -> Slicer:
        if corpus not in self._slicers:
            from specdebug.base.corpus import heldout_text  # the only corpus; here, because it reads sources

            self._slicers[corpus] = Slicer(corpus, heldout_text(), self._encode)
        return self._slicers[corpus]

    def _encode(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # one that lacks its own unknown token, say, or a panic, which is no Exception
            told = f"the tokenizer cannot encode a prompt: {one_line(str(error))}; fetch it again"
            raise CheckpointError(told) from None
        return ids
