"""Generated engine configurations and workloads, for tests of what must hold under all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from specdebug.engine import EngineConfig
from specdebug.engine.speculative.registry import ALGORITHMS
from tests.engine.oracle import GreedyOracle

MAX_PREFILL_STEPS = 120


@dataclass(frozen=True)
class Ask:
    """One request. ``arrive`` and ``abort_after`` count steps; wave 1 arrives when wave 0 is done."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    wave: int
    arrive: int
    speculative: bool
    temperature: float
    stop: tuple[int, ...]
    abort_after: int | None


@dataclass(frozen=True)
class Combo:
    """An engine's configuration and what it is asked. ``flush_at``: the step when its cache is dropped."""

    engine: dict[str, Any]
    asks: tuple[Ask, ...]
    flush_at: int | None


def families(oracle: GreedyOracle, text: Sequence[int], trunks: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """Prompts that share prefixes with others of their family, cut from ``text``.

    Each family has a trunk of the given length, prompts that follow it to its end or leave it halfway, and
    prompts that continue what was generated after others.
    """
    found, at = [], 0

    def take(length: int) -> tuple[int, ...]:
        nonlocal at
        piece = tuple(text[at : at + length])
        at += length
        assert len(piece) == length, "the text is too short"
        return piece

    for length in trunks:
        trunk = take(length)
        members = [trunk, trunk + take(5), trunk + take(23), trunk[: length // 2] + take(9), trunk + take(2)]
        for member, kept in ((members[0], 7), (members[1], 16)):
            members.append(member + oracle.greedy(member).tokens[:kept] + take(3))
        found.append(members)
    return found


@st.composite
def speculations(
    draw: st.DrawFn, algorithm: str, draft_model: str, max_steps: int, worker: str = "v2"
) -> dict[str, Any]:
    """A valid ``speculative`` block. ``draft_model`` of MTP: a folder of next-n layers, as ``Lab.mtp`` is."""
    on_hit = st.sampled_from(["recompute", "recompute", "zero_fill"])
    if algorithm == "MTP":
        layers, chained = draw(st.sampled_from([2, 3, 4])), draw(st.booleans())
        return {
            "algorithm": algorithm,
            "draft_model": f"{draft_model}/{layers}{'-chained' if chained else ''}",
            "num_steps": layers,
            "draft_kv_on_hit": draw(on_hit),
        }
    steps = draw(st.integers(1, max_steps))
    topk = draw(st.sampled_from([1, 2, 3, 4, 6]))
    block = {
        "algorithm": algorithm,
        "draft_model": draft_model,
        "num_steps": steps,
        "eagle_topk": topk,
        "worker": worker,
        "draft_kv_on_hit": draw(on_hit) if ALGORITHMS[algorithm].draft_kv else "recompute",
    }
    if topk > 1:
        most = 1 + topk + topk**2 * (steps - 1)
        block["num_draft_tokens"] = draw(st.integers(2, min(most, 24)))
    return block


@st.composite
def asks(draw: st.DrawFn, pool: list[list[tuple[int, ...]]], vocab: int, max_new: int, most: int) -> tuple[Ask, ...]:
    """Up to ``most`` requests of one or two families in two waves."""
    chosen = draw(st.lists(st.sampled_from(range(len(pool))), min_size=1, max_size=2, unique=True))
    prompts = [prompt for index in chosen for prompt in pool[index]]
    made = []
    for _ in range(draw(st.integers(3, most))):
        made.append(
            Ask(
                prompt=draw(st.sampled_from(prompts)),
                max_new_tokens=draw(st.integers(1, max_new) | st.just(max_new)),
                wave=draw(st.sampled_from([0, 0, 0, 1])),
                arrive=draw(st.sampled_from([0, 0, 0, 0, 1, 4])),
                speculative=draw(st.sampled_from([True, True, True, False])),
                temperature=draw(st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.8])),
                stop=draw(st.sampled_from([(), (), (vocab // 2, vocab // 3)])),
                abort_after=draw(st.sampled_from([None] * 8 + [1, 2, 3, 5])),
            )
        )
    return tuple(made)


@st.composite
def combos(
    draw: st.DrawFn,
    pool: list[list[tuple[int, ...]]],
    *,
    target: str,
    draft: str,
    algorithm: str,
    backend: str,
    vocab: int,
    max_new: int = 24,
    most_asks: int = 7,
    max_steps: int = 6,
    worker: str = "v2",
) -> Combo:
    """Everything at once: memory from ample to so tight that requests are retracted."""
    asked = draw(asks(pool, vocab, max_new, most_asks))
    spec = draw(speculations(algorithm, draft, max_steps, worker))
    longest = max(len(ask.prompt) + ask.max_new_tokens for ask in asked)
    max_bs = draw(st.integers(2, 6))
    fewest = sum(len(ask.prompt) for ask in asked) // MAX_PREFILL_STEPS + 1
    chunk = draw(st.sampled_from([None, 1, 5, 16, 64, 200]))
    engine: dict[str, Any] = {
        "model": target,
        "attention_backend": backend,
        "page_size": draw(st.sampled_from([1, 4, 16, 256])),
        "context_length": longest + draw(st.sampled_from([0, 0, 40])) if longest >= 8 else 8,
        "max_running_requests": draw(st.sampled_from([1, 2, 4, 8])),
        "chunked_prefill_size": None if chunk is None else max(chunk, fewest),
        "radix_cache": draw(st.sampled_from([True, True, True, False])),
        "speculative": draw(st.sampled_from([spec] * 9 + [None])),
        "cuda_graph": {
            "enabled": draw(st.sampled_from([True, True, False])),
            "max_bs": max_bs,
            "capture_bs": draw(st.sampled_from([None, [max_bs], [1, max_bs], [max_bs // 2]])),
        },
        "memory": {
            "num_slots": 1 << 20,
            "fill": draw(st.sampled_from(["nan", "garbage", "garbage", "zeros"])),
            "guards": True,
        },
    }
    headroom = EngineConfig.from_dict(engine).row_headroom
    least = longest + headroom
    ample = sum(len(ask.prompt) + ask.max_new_tokens + headroom for ask in asked)
    room = draw(st.sampled_from([None, None, 0, longest // 4, longest, 2 * longest]))
    engine["memory"]["num_slots"] = ample if room is None else least + room
    flush_at = draw(st.sampled_from([None, None, None, 6]))
    return Combo(engine, asked, flush_at)
