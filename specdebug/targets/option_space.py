"""Engine options drawn from a seed and a number, for an engine that has some values of them and lacks others.

Of each option the values come in blocks in which each has its turn, so that a short hunt meets them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from specdebug.base.attention_plans import SHIPPED
from specdebug.base.trial import stream
from specdebug.engine.workers.registry import LINEUP, WorkerEntry

T = TypeVar("T")
Plain = dict[str, Any]

LARGE = 64
"""Pages of as many tokens: a request takes several only if its prompt is longer than the others'."""


@dataclass(frozen=True)
class OptionSpace:
    """The options that an engine can be asked for.

    Attributes:
        workers: what drafts, and for which model.
        pages_with_trees: plans that take pages and several branches at once.
    """

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

    def drawn(self, seed: int, number: int, tokens: int) -> tuple[Plain, bool]:
        """The options of engine ``number`` of a seed but for its memory, and True if that is to be tight. ``tokens``:
        the most that a request has, but for a page more where pages are :data:`LARGE`."""

        def deal(option: str, values: Sequence[T]) -> T:
            block, place = divmod(number, len(values))
            return stream(seed, "hunt", option, block).sample(list(values), len(values))[place]

        page_size, worker = deal("page", self.pages), deal("algorithm", self.workers)
        topk = 1 if worker.only_chains else deal("topk", self.topks)
        steps = worker.layers or deal("steps", self.steps)
        chunk = deal("chunk", self.chunks)
        plans = self.pages_with_trees if page_size > 1 and topk > 1 else self.plans
        most = min(1 + topk + topk**2 * (steps - 1), 12)
        nodes = steps + 1
        if topk > 1:
            nodes = min(stream(seed, "hunt", "nodes", number).randint(nodes, max(most, nodes)), most)
        longest = tokens + page_size * (page_size == LARGE)
        options: Plain = {
            **worker.options(steps, topk, nodes),
            "attention_backend": deal("plan", plans),
            "page_size": page_size,
            # SGLang keeps some of it free for drafts, and declines a request that wants those too
            "context_length": longest + max(nodes, topk * steps) + 8,
            "max_running_requests": deal("running", self.running),
            "chunked_prefill_size": None if chunk is None else -(-chunk // page_size) * page_size,
            "radix_cache": deal("radix", self.radix),
            "cuda_graph": deal("graph", self.graphs),
        }
        return options, deal("slots", self.tight)


_PLANS = tuple(plan.name for plan in SHIPPED)
_EAGLE, _EAGLE3 = LINEUP["EAGLE v2"], WorkerEntry("EAGLE3", algorithm="EAGLE3")
_OURS = (*LINEUP.values(), _EAGLE3, replace(_EAGLE3, worker="v1"), replace(LINEUP["MLA"], worker="v1"))
SPACES = {
    "embedded": OptionSpace(_PLANS, (1, 4, 16, LARGE), (1, 2, 4), _OURS, _PLANS),
    "sglang": OptionSpace(_PLANS, (1, 4, 16, LARGE), (1, 2, 4), (_EAGLE,), ("fa3",)),
    "vllm": OptionSpace(
        ("triton",), (32,), (1,), (_EAGLE, _EAGLE3), (), chunks=(None, 64), graphs=({"enabled": False},)
    ),
}
"""By the kind of target."""
SERVED = SPACES["sglang"]
"""For any other server of SGLang's options."""
