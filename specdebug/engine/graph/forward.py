"""The forwards of a decode step, and how one runs: as a graph over static buffers where a runner holds its batch, or
eagerly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.config import EngineConfig
from specdebug.engine.memory.arena import FillPolicy
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.textbook.attention.planner import AttentionPlanner, Metadata, Workspace
from specdebug.events import Forward, Launched, Observers

if TYPE_CHECKING:
    from specdebug.engine.graph.runner import GraphRunner


@dataclass(frozen=True)
class EngineParts:
    """An engine makes its workers with these."""

    config: EngineConfig
    planner: AttentionPlanner
    fill: FillPolicy
    dtype: torch.dtype
    device: torch.device
    observers: Observers


class ForwardInputs(Protocol):
    """The fields that the inputs of every forward have: int64 [B], [B], and slots by token, None if none is written."""

    @property
    def req_pool_indices(self) -> Tensor: ...
    @property
    def seq_lens(self) -> Tensor: ...
    @property
    def out_cache_loc(self) -> Tensor | None: ...


Inputs = TypeVar("Inputs", bound=ForwardInputs)
Outputs = TypeVar("Outputs")


class StepForward(ABC, Generic[Inputs, Outputs]):
    """A model over one batch of a step: how its attention is planned, and what is computed under that plan. ``pool``:
    what it attends."""

    name: Forward
    pool: KVPool

    @abstractmethod
    def plan(
        self, planner: AttentionPlanner, inputs: Inputs, lens: tuple[int, ...], workspace: Workspace, slack: int
    ) -> list[Metadata]:
        """Metadata of each attention in the forward. Lengths are at most ``lens``, and all together at most
        ``slack`` less."""

    @abstractmethod
    def run(self, inputs: Inputs, attentions: Sequence[LayerAttention]) -> Outputs:
        """Compute it, each attention under its plan."""

    def locs(self, inputs: Inputs) -> Sequence[Tensor | None]:
        """Slots that each attention in the forward writes, int64; None for one that writes none."""
        return [inputs.out_cache_loc]


@dataclass(frozen=True, eq=False)
class ForwardLauncher(Generic[Inputs, Outputs]):
    """Runs one forward. ``runner``: its graph runner, None where there is none."""

    forward: StepForward[Inputs, Outputs]
    parts: EngineParts
    attention: AttentionBackend
    workspace: Workspace
    runner: GraphRunner[Inputs, Outputs] | None

    def run(self, inputs: Inputs, lens_cpu: tuple[int, ...]) -> Outputs:
        """Outputs of a batch whose lengths are at most ``lens_cpu``, valid until the next run."""
        if self.runner is not None and self.runner.can_run(len(lens_cpu)):
            return self.runner.replay(inputs, lens_cpu)
        return self.run_eagerly(inputs, lens_cpu)

    def run_eagerly(self, inputs: Inputs, lens_cpu: tuple[int, ...]) -> Outputs:
        """:meth:`run` without a graph."""
        forward = self.forward
        self.parts.observers.tell(Launched, forward.name, len(lens_cpu), None)
        plans = forward.plan(self.parts.planner, inputs, lens_cpu, self.workspace, 0)
        attentions = [
            self.attention.bind(plan, forward.pool, loc) for plan, loc in zip(plans, forward.locs(inputs), strict=True)
        ]
        return forward.run(inputs, attentions)
