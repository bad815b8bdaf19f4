"""The graph runners of a speculative step: one for each of its forwards, or none at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specdebug.engine.graph.runner import GraphRunner, RunnerParts
from specdebug.engine.graph.verify_runner import VerifyGraphRunner
from specdebug.engine.speculative.protocol import WorkerParts


@dataclass(frozen=True)
class Runners:
    """None for a stage that computes nothing; all None where the configuration has no graph runners, so that every
    batch runs eagerly."""

    draft: GraphRunner[Any, Any] | None = None
    verify: VerifyGraphRunner | None = None
    extend: GraphRunner[Any, Any] | None = None

    @property
    def all(self) -> list[GraphRunner[Any, Any]]:
        """Those that there are."""
        each: tuple[GraphRunner[Any, Any] | None, ...] = (self.draft, self.verify, self.extend)
        return [runner for runner in each if runner is not None]


def runner_parts(parts: WorkerParts) -> RunnerParts | None:
    """What runners are made with; None where the configuration has none."""
    if not parts.config.cuda_graph.enabled:
        return None
    return RunnerParts(parts.config, parts.planner, parts.fill, parts.dtype, parts.device, parts.observers)


def capture(runners: Sequence[GraphRunner[Any, Any]], device: torch.device) -> None:
    """Capture the runners' graphs, in this order, where there is a GPU."""
    if device.type == "cuda" and runners:
        pool = torch.cuda.graph_pool_handle()  # they run one after another, so they share it
        for runner in runners:
            runner.capture(pool)
