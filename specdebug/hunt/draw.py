"""Scenarios drawn from a seed and a number, for an engine that has some options and lacks others.

A few scenarios in a row share an engine, so that a server is started once for them. Of each option the values come in
blocks in which each has its turn, so that a short hunt meets them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from specdebug.attention_plans import SHIPPED
from specdebug.engine.config import EngineConfig
from specdebug.hunt.workload import LONGEST_PROMPT, MOST_NEW, Plain, groups
from specdebug.random_streams import stream

T = TypeVar("T")

ARM = "drawn"
TOGETHER = 4
"""Scenarios in a row that have one engine."""
MTP_LAYERS = 3
"""Of ``tiny-mtp``, each of which drafts one token."""
LARGE = 64
"""Pages of as many tokens: a request takes several only if its prompt is longer than the others'."""


@dataclass(frozen=True)
class HuntSpace:
    """The options that an engine can be asked for. ``pages_with_trees``: plans that take pages and several branches at
    once."""

    plans: tuple[str, ...]
    pages: tuple[int, ...]
    topks: tuple[int, ...]
    algorithms: tuple[str, ...]
    pages_with_trees: tuple[str, ...]
    steps: tuple[int, ...] = (1, 2, 3, 5)
    running: tuple[int, ...] = (1, 2, 3, 4, 8)
    chunks: tuple[int | None, ...] = (None, 24, None, 64)
    radix: tuple[bool, ...] = (True, True, False)
    graphs: tuple[Plain, ...] = ({"max_bs": 4}, {"max_bs": 4, "capture_bs": [4]}, {"max_bs": 2}, {"enabled": False})
    tight: tuple[bool, ...] = (True, False)


_PLANS = tuple(plan.name for plan in SHIPPED)
SPACES = {
    "embedded": HuntSpace(_PLANS, (1, 4, 16, LARGE), (1, 2, 4), ("EAGLE", "EAGLE3", "MTP", "FROZEN_KV_MTP"), _PLANS),
    "sglang": HuntSpace(_PLANS, (1, 4, 16, LARGE), (1, 2, 4), ("EAGLE",), ("fa3",)),
    "vllm": HuntSpace(
        ("triton",), (32,), (1,), ("EAGLE", "EAGLE3"), (), chunks=(None, 64), graphs=({"enabled": False},)
    ),
}
"""By the kind of target."""
SERVED = SPACES["sglang"]
"""For any other server of SGLang's options."""


def drawn(seed: int, number: int, space: HuntSpace) -> Plain:
    """Scenario ``number`` of a seed, as a file says it."""
    rng = stream(seed, "hunt", "workload", number)
    options = _engine(seed, number // TOGETHER, space)
    more = options["page_size"] if options["page_size"] > LONGEST_PROMPT else 0
    return {
        "name": f"hunt-{seed}-{number}",
        "description": f"Scenario {number} of the hunt of seed {seed}.",
        "seed": rng.getrandbits(31),
        "engine": options,
        "workload": groups(rng, more),
        "arms": {ARM: {}},
        "limits": {"max_steps": 3000, "timeout_s": 300},
    }


def _engine(seed: int, number: int, space: HuntSpace) -> Plain:
    """The options of an engine."""

    def deal(option: str, values: Sequence[T]) -> T:
        block, place = divmod(number, len(values))
        return stream(seed, "hunt", option, block).sample(list(values), len(values))[place]

    page_size, topk, steps = deal("page", space.pages), deal("topk", space.topks), deal("steps", space.steps)
    algorithm = deal("algorithm", space.algorithms)
    if algorithm == "MTP":
        topk, steps = 1, MTP_LAYERS
    chunk = deal("chunk", space.chunks)
    plans = space.pages_with_trees if page_size > 1 and topk > 1 else space.plans
    most = min(1 + topk + topk**2 * (steps - 1), 12)
    nodes = steps + 1 if topk == 1 else stream(seed, "hunt", "nodes", number).randint(steps + 1, max(most, steps + 1))
    longest = LONGEST_PROMPT + MOST_NEW + (page_size if page_size > LONGEST_PROMPT else 0)
    options: dict[str, Any] = {
        "model": "tiny",
        "attention_backend": deal("plan", plans),
        "page_size": page_size,
        # SGLang keeps some of it free for drafts, and declines a request that wants those too
        "context_length": longest + max(nodes, topk * steps) + 8,
        "max_running_requests": deal("running", space.running),
        "chunked_prefill_size": None if chunk is None else -(-chunk // page_size) * page_size,
        "radix_cache": deal("radix", space.radix),
        "speculative": {
            "algorithm": algorithm,
            "num_steps": steps,
            "eagle_topk": topk,
            "num_draft_tokens": min(nodes, most) if topk > 1 else nodes,
        },
        "cuda_graph": deal("graph", space.graphs),
    }
    each = options["context_length"] + EngineConfig.from_dict(options).row_headroom
    # Tight: two requests at their full length are served only by retracting one, and cached prefixes go.
    slots = each + page_size if deal("slots", space.tight) else each * options["max_running_requests"] + page_size
    return options | {"memory": {"num_slots": -(-slots // page_size) * page_size}}
