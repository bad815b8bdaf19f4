"""Configurations of engines and what they are asked, for whatever has to hold under all of them.

Every choice is made by a function that is handed in: :class:`Decks` deals from a seed, and a test lets Hypothesis
choose, which then makes small what fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from specdebug.engine import EngineConfig
from specdebug.engine.workers.registry import ALGORITHMS

T = TypeVar("T", bound=Hashable)
Prompt = tuple[int, ...]
Continue = Callable[[Prompt], Sequence[int]]
"""It takes a prompt and returns at least ``MOST_NEW`` tokens that the target generates greedily behind it."""

MOST_NEW = 24
MOST_STEPS = 6
MOST_NODES = 24
MAX_PREFILL_STEPS = 120
TRUNKS = (1, 3, 18, 70, 290)


class Choose(Protocol):
    """Takes one of ``options``. ``what`` is chosen, in a word or two."""

    def __call__(self, what: str, options: Sequence[T], /) -> T: ...


class Decks:
    """Deals instead of drawing: of each choice the options come in blocks in which each has its turn, shuffled."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._left: dict[Hashable, list[Any]] = {}

    def __call__(self, what: str, options: Sequence[T], /) -> T:
        left = self._left.setdefault((what, tuple(options)), [])
        if not left:
            left += self._rng.sample(options, len(options))
        found: T = left.pop()
        return found


@dataclass(frozen=True)
class Draft:
    """A draft model and who drafts with it. ``steps``: of next-n layers, how many there are."""

    algorithm: str
    model: str
    worker: str = "v2"
    steps: int | None = None


@dataclass(frozen=True)
class Served:
    """A target, what drafts for it, and prompts for it, by family. ``eos``: a token that may end a text."""

    target: str
    drafts: tuple[Draft, ...]
    prompts: Sequence[Sequence[Prompt]]
    continuation: Continue
    eos: int


@dataclass(frozen=True)
class Ask:
    """One request. ``arrive`` and ``abort_after`` count steps; wave 1 arrives when wave 0 is done."""

    prompt: Prompt
    max_new_tokens: int
    wave: int
    arrive: int
    speculative: bool
    temperature: float
    stop: tuple[int, ...]
    abort_after: int | None


@dataclass(frozen=True)
class Configuration:
    """An engine's options and what it is asked. ``flush_at``: the step when its cache is dropped."""

    engine: dict[str, Any]
    asks: tuple[Ask, ...]
    flush_at: int | None


def families(text: Sequence[int], continuation: Continue, trunks: Sequence[int] = TRUNKS) -> list[list[Prompt]]:
    """Prompts that share prefixes with others of their family, cut from ``text``.

    Each family has a trunk of the given length, prompts that follow it to its end or leave it halfway, and
    prompts that continue what was generated after others. Raises ValueError if the text is too short.
    """
    found, at = [], 0

    def take(length: int) -> Prompt:
        nonlocal at
        piece = tuple(text[at : at + length])
        at += length
        if len(piece) < length:
            raise ValueError(f"the text is too short: {len(text)} tokens, and {at} are needed")
        return piece

    for length in trunks:
        trunk = take(length)
        members = [trunk, trunk + take(5), trunk + take(23), trunk[: length // 2] + take(9), trunk + take(2)]
        for member, kept in ((members[0], 7), (members[1], 16)):
            members.append(member + tuple(continuation(member)[:kept]) + take(3))
        found.append(members)
    return found


def speculation(choose: Choose, drafts: Sequence[Draft], most_steps: int = MOST_STEPS) -> dict[str, Any]:
    """A valid ``speculative`` block: a chain, or a tree where the algorithm has any."""
    draft = choose("draft", drafts)
    algorithm = ALGORITHMS[draft.algorithm]
    steps = draft.steps or choose("num_steps", range(1, most_steps + 1))
    topk = 1 if algorithm.only_chains else choose("eagle_topk", (1, 2, 3, 4, 6))
    block = {
        "algorithm": draft.algorithm,
        "draft_model": draft.model,
        "worker": draft.worker,
        "num_steps": steps,
        "eagle_topk": topk,
        "draft_kv_on_hit": "recompute",
    }
    if algorithm.draft_kv:
        block["draft_kv_on_hit"] = choose("draft_kv_on_hit", ("recompute", "recompute", "zero_fill"))
    if topk > 1:
        most = min(1 + topk + topk**2 * (steps - 1), MOST_NODES)
        block["num_draft_tokens"] = choose("num_draft_tokens", range(2, most + 1))
    return block


def asks(choose: Choose, served: Served, most: int) -> tuple[Ask, ...]:
    """Three to ``most`` requests of one or two families in two waves. Some end at the end-of-text token, or at one that
    the target does generate."""
    numbers = range(len(served.prompts))
    families = {choose("family", numbers), choose("another family", (*numbers, *(None for _ in numbers)))} - {None}
    prompts = [prompt for number in sorted(families) for prompt in served.prompts[number]]

    def ask() -> Ask:
        prompt = choose("prompt", prompts)
        length = choose("max_new_tokens", (*range(1, MOST_NEW + 1), *(MOST_NEW for _ in range(MOST_NEW))))
        ends = choose("stop", (None, None, None, 4, 12))
        return Ask(
            prompt=prompt,
            max_new_tokens=length,
            wave=choose("wave", (0, 0, 0, 1)),
            arrive=choose("arrive", (0, 0, 0, 0, 1, 4)),
            speculative=choose("speculative", (True, True, True, False)),
            temperature=choose("temperature", (0.0, 0.0, 0.0, 0.0, 0.8)),
            stop=() if ends is None else (served.eos, served.continuation(prompt)[ends]),
            abort_after=choose("abort_after", (*(None for _ in range(16)), 1, 3)),
        )

    return tuple(ask() for _ in range(choose("requests", range(3, most + 1))))


def configuration(
    choose: Choose, served: Served, plan: str, *, most_asks: int = 7, most_steps: int = MOST_STEPS, **fixed: Any
) -> Configuration:
    """Everything at once: memory from ample to so tight that requests are retracted. ``fixed``: options that are given,
    such as device and dtype."""
    asked = asks(choose, served, most_asks)
    longest = max(len(ask.prompt) + ask.max_new_tokens for ask in asked)
    fewest = sum(len(ask.prompt) for ask in asked) // MAX_PREFILL_STEPS + 1
    chunk = choose("chunked_prefill_size", (None, 1, 5, 16, 64, 200))
    engine: dict[str, Any] = {
        "model": served.target,
        "attention_backend": plan,
        "page_size": choose("page_size", (1, 4, 16, 256)),
        "context_length": max(longest + choose("context beyond", (0, 0, 40)), 8),
        "max_running_requests": choose("max_running_requests", (1, 2, 4, 8)),
        "chunked_prefill_size": None if chunk is None else max(chunk, fewest),
        "radix_cache": choose("radix_cache", (True, True, True, False)),
        "speculative": speculation(choose, served.drafts, most_steps) if served.drafts else None,
        "cuda_graph": _graphs(choose),
        "memory": {
            "num_slots": 1 << 20,
            "fill": choose("fill", ("nan", "garbage", "garbage", "zeros")),
            "guards": True,
        },
        **fixed,
    }
    headroom = EngineConfig.from_dict(engine).row_headroom
    ample = sum(len(ask.prompt) + ask.max_new_tokens + headroom for ask in asked)
    beyond = choose("memory", (None, None, 0, 0.25, 1, 2))
    least = longest + headroom
    engine["memory"]["num_slots"] = ample if beyond is None else least + int(beyond * longest)
    return Configuration(engine, asked, choose("flush_at", (None, None, None, 6)))


def _graphs(choose: Choose) -> dict[str, Any]:
    """Captured for some batch sizes; others are padded to these, or run without a graph."""
    max_bs = choose("max_bs", range(2, 7))
    captured = choose("capture_bs", ("all", "largest", "least and largest", "half"))
    sizes = {"all": None, "largest": [max_bs], "least and largest": [1, max_bs], "half": [max_bs // 2]}
    return {"enabled": choose("graphs", (True, True, False)), "max_bs": max_bs, "capture_bs": sizes[captured]}
