"""Scenarios drawn from a seed and a number, for an engine that has some options and lacks others.

A few scenarios in a row share an engine, so that a server is started once for them. Of each option the values come in
blocks in which each has its turn, so that a short hunt meets them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from specdebug.base.attention_plans import SHIPPED
from specdebug.base.random_streams import stream
from specdebug.engine.config import EngineConfig
from specdebug.engine.lineup import LINEUP, WorkerEntry
from specdebug.hunt.workload import LONGEST_PROMPT, MOST_NEW, Plain, groups

T = TypeVar("T")

ARM = "drawn"
TOGETHER = 4
"""Scenarios in a row that have one engine."""
LARGE = 64
"""Pages of as many tokens: a request takes several only if its prompt is longer than the others'."""


@dataclass(frozen=True)
class HuntSpace:
    """The options that an engine can be asked for. ``workers``: what drafts, and for which model. ``pages_with_trees``:
    plans that take pages and several branches at once."""

    plans: tuple[str, ...]
    pages: tuple[int, ...]
    topks: tuple[int, ...]
    workers: tuple[WorkerEntry, ...]
    pages_with_trees: tuple[str, ...]
    steps: tuple[int, ...] = (1, 2, 3, 5)
    running: tuple[int, ...] = (1, 2, 3, 4, 8)
    chunks: tuple[int | None, ...] = (None, 24, None, 64)
    radix: tuple[bool, ...] = (True, True, False)
    graphs: tuple[Plain, ...] = ({"max_bs": 4}, {"max_bs": 4, "capture_bs": [4]}, {"max_bs": 2}, {"enabled": False})
    tight: tuple[bool, ...] = (True, False)


_PLANS = tuple(plan.name for plan in SHIPPED)
_EAGLE, _EAGLE3 = LINEUP["EAGLE v2"], WorkerEntry("EAGLE3", algorithm="EAGLE3")
_OURS = (*LINEUP.values(), _EAGLE3, replace(_EAGLE3, worker="v1"), replace(LINEUP["MLA"], worker="v1"))
SPACES = {
    "embedded": HuntSpace(_PLANS, (1, 4, 16, LARGE), (1, 2, 4), _OURS, _PLANS),
    "sglang": HuntSpace(_PLANS, (1, 4, 16, LARGE), (1, 2, 4), (_EAGLE,), ("fa3",)),
    "vllm": HuntSpace(("triton",), (32,), (1,), (_EAGLE, _EAGLE3), (), chunks=(None, 64), graphs=({"enabled": False},)),
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

    page_size, worker = deal("page", space.pages), deal("algorithm", space.workers)
    topk = 1 if worker.only_chains else deal("topk", space.topks)
    steps = worker.layers or deal("steps", space.steps)
    chunk = deal("chunk", space.chunks)
    plans = space.pages_with_trees if page_size > 1 and topk > 1 else space.plans
    most = min(1 + topk + topk**2 * (steps - 1), 12)
    nodes = steps + 1 if topk == 1 else stream(seed, "hunt", "nodes", number).randint(steps + 1, max(most, steps + 1))
    longest = LONGEST_PROMPT + MOST_NEW + (page_size if page_size > LONGEST_PROMPT else 0)
    options: dict[str, Any] = {
        **worker.options(steps, topk, min(nodes, most) if topk > 1 else nodes),
        "attention_backend": deal("plan", plans),
        "page_size": page_size,
        # SGLang keeps some of it free for drafts, and declines a request that wants those too
        "context_length": longest + max(nodes, topk * steps) + 8,
        "max_running_requests": deal("running", space.running),
        "chunked_prefill_size": None if chunk is None else -(-chunk // page_size) * page_size,
        "radix_cache": deal("radix", space.radix),
        "cuda_graph": deal("graph", space.graphs),
    }
    each = options["context_length"] + EngineConfig.from_dict(options).row_headroom
    # Tight: two requests at their full length are served only by retracting one, and cached prefixes go.
    slots = each + page_size if deal("slots", space.tight) else each * options["max_running_requests"] + page_size
    return options | {"memory": {"num_slots": -(-slots // page_size) * page_size}}
