"""What a soak asks for: engines, and workloads for them, drawn from seeded streams.

An engine is found by the soak's seed, its worker and its number there, a workload by its number in that engine's life.
What kinds of engine there are is dealt and not drawn: of each option the values come in blocks in which each has its
turn, in an order of the block's own, so that even a short soak meets them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from specdebug.apps.hunt.draw import LONGEST_PROMPT, MOST_NEW, groups
from specdebug.base.attention_plans import SHIPPED
from specdebug.base.trial import stream
from specdebug.engine.config import EngineConfig
from specdebug.engine.workers.registry import LINEUP, WorkerEntry

T = TypeVar("T")
Plain = dict[str, Any]

WORKERS = (*LINEUP.values(), WorkerEntry("EAGLE3", algorithm="EAGLE3"))
TOKENIZER = "tiny"
"""The shipped targets have one tokenizer."""
PLANS = tuple(plan.name for plan in SHIPPED)
PAGE_SIZES = (1, 16, 4, 1, 16, 256)
"""Large pages are one in six: with them a request reserves thousands of slots, and a step takes half as long again."""
TOPKS = (1, 2, 1, 4)
STEPS = (1, 2, 3, 4)
MOST_NODES = 8
RUNNING = (1, 2, 3, 4)
GRAPHS: tuple[Plain, ...] = (
    {"enabled": False},
    {"max_bs": 4, "capture_bs": [4]},  # fewer than four are padded
    {"max_bs": 4},  # captured for one, two and four: only three are
    {"max_bs": 2},  # more than two run without a graph
)
CHUNKS = (None, None, 24, 7)
RADIX = (True, True, True, False)
ON_HIT = ("recompute", "recompute", "zero_fill")
FILLS = ("nan", "garbage", "zeros")
TIGHT = (True, False)

REACH = max(PAGE_SIZES) + LONGEST_PROMPT + MOST_NEW + MOST_NODES
"""Positions of every engine, a step's look ahead included: models are loaded for so many, and shared."""


def dealt(seed: int, worker: int, number: int, option: str, values: Sequence[T]) -> T:
    """The value of an option that engine ``number`` gets: in every block of ``len(values)`` engines each is one's."""
    block, place = divmod(number, len(values))
    return stream(seed, "soak", worker, "option", option, block).sample(list(values), len(values))[place]


def engine(seed: int, worker: int, number: int) -> Plain:
    """Options of an engine, as a scenario says them."""

    def deal(option: str, values: Sequence[T]) -> T:
        return dealt(seed, worker, number, option, values)

    page_size, drafts = deal("page_size", PAGE_SIZES), deal("algorithm", WORKERS)
    large, steps = _is_large(page_size), drafts.layers or deal("num_steps", STEPS)
    topk = 1 if drafts.only_chains else min(deal("eagle_topk", TOPKS), 2 if large else MOST_NODES)
    most = min(1 + topk + topk**2 * (steps - 1), MOST_NODES)
    nodes = steps + 1 if topk == 1 else stream(seed, "soak", worker, "nodes", number).randint(2, most)
    options: Plain = {
        **drafts.options(steps, topk, nodes),
        "attention_backend": deal("plan", PLANS),
        "page_size": page_size,
        "context_length": REACH - max(nodes, steps),
        "max_running_requests": 2 if large else deal("running", RUNNING),
        "chunked_prefill_size": deal("chunk", (None, 64) if large else CHUNKS),
        "radix_cache": deal("radix", RADIX),
        "cuda_graph": deal("graph", GRAPHS),
    }
    if drafts.draft_kv:
        options["speculative"]["draft_kv_on_hit"] = deal("on_hit", ON_HIT)
    longest = LONGEST_PROMPT + MOST_NEW + (page_size if large else 0)
    each = longest + EngineConfig.from_dict(options).row_headroom
    # Tight: the longest request alone is served, two at their full length only by retracting one, and prefixes go.
    slots = each if deal("slots", TIGHT) else each * options["max_running_requests"]
    return options | {"memory": {"num_slots": slots, "fill": deal("fill", FILLS), "guards": True}}


def scenario(seed: int, worker: int, number: int, nth: int) -> Plain:
    """The ``nth`` workload of engine ``number``, with that engine, as a scenario file says it."""
    rng = stream(seed, "soak", worker, "workload", number, nth)
    options = engine(seed, worker, number)
    page_size = options["page_size"]
    return {
        "name": f"soak-{worker}-{number}-{nth}",
        "description": f"Workload {nth} of engine {worker}.{number} of the soak of seed {seed}.",
        "seed": rng.getrandbits(31),
        "engine": options,
        "workload": groups(rng, page_size if _is_large(page_size) else 0),
        "limits": {"max_steps": 2000},
    }


def _is_large(page_size: int) -> bool:
    return page_size > LONGEST_PROMPT
