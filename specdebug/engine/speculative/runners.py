"""The graph runners of a speculative step: one for each of its three forwards, or none at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from specdebug.engine.graph.draft_runner import DraftGraphRunner
from specdebug.engine.graph.extend_runner import ExtendGraphRunner
from specdebug.engine.graph.runner import GraphRunner, RunnerParts
from specdebug.engine.graph.verify_runner import VerifyGraphRunner
from specdebug.engine.speculative.draft import DraftLoop
from specdebug.engine.speculative.extend import ExtendForward
from specdebug.engine.speculative.protocol import WorkerParts
from specdebug.engine.speculative.verify import VerifyForward


@dataclass(frozen=True)
class Runners:
    """All None where the configuration has no graph runners: then every batch runs eagerly."""

    draft: DraftGraphRunner | None = None
    verify: VerifyGraphRunner | None = None
    extend: ExtendGraphRunner | None = None

    @property
    def all(self) -> list[GraphRunner[Any, Any]]:
        """Those that there are."""
        each: tuple[GraphRunner[Any, Any] | None, ...] = (self.draft, self.verify, self.extend)
        return [runner for runner in each if runner is not None]


def make_runners(parts: WorkerParts, loop: DraftLoop, verify: VerifyForward, extend: ExtendForward) -> Runners:
    """Runners of these forwards, captured where there is a GPU."""
    if not parts.config.cuda_graph.enabled:
        return Runners()
    shared = RunnerParts(parts.config, parts.planner, parts.fill, parts.dtype, parts.device, parts.observers)
    target, nodes = parts.attention.target, parts.spec.tree_size
    on_draft = DraftGraphRunner(shared, loop, parts.attention.draft)
    on_verify = VerifyGraphRunner(shared, verify, target, tree_size=nodes)
    on_extend = ExtendGraphRunner(
        shared, extend, parts.attention.draft, tree_size=nodes, target_vocab_size=parts.vocab_size
    )
    if parts.device.type == "cuda":
        pool = torch.cuda.graph_pool_handle()  # they run one after another, so they share it
        order: list[GraphRunner[Any, Any]] = [on_verify, on_draft, on_extend]
        for runner in order:
            runner.capture(pool)
    return Runners(on_draft, on_verify, on_extend)
