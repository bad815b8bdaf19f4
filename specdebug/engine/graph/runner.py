"""The runners share captured sizes, one arena of static buffers each, and the life of a buffer.

A replay copies live rows into static inputs, clears the rows it pads, plans attention into static metadata,
runs the captured callable and returns views of static outputs. Two rules follow: outputs are valid until the
next replay, and inputs only from when they are loaded until the callable has run, because memory may be shared.
Between replays the fill policy therefore treats inputs as released.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from specdebug.engine.attention.backend import AttentionBackend, BoundAttention
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.attention.workspace import ArenaWorkspace
from specdebug.engine.graph.capture import CapturedForward
from specdebug.engine.memory.arena import Arena, ArenaLayout, GuardViolation
from specdebug.engine.memory.fill import FillPolicy
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import LayerAttention


@dataclass(frozen=True)
class StaticBuffer:
    """One static input or output of a runner, declared once; ``name`` is its field in the runner's records.

    Attributes:
        rows: of each request.
        shape: of a row.
    """

    name: str
    rows: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class StaticBuffers:
    """One runner's arena: declared inputs, the planner's metadata, then outputs.

    The arena and its guards know inputs and outputs as ``scope.name``.
    """

    def __init__(
        self,
        scope: str,
        max_bs: int,
        *,
        inputs: Sequence[StaticBuffer],
        metadata: ArenaLayout,
        outputs: Sequence[StaticBuffer],
        fill: FillPolicy,
        device: torch.device,
    ) -> None:
        layout = ArenaLayout(guards=metadata.guards)
        self._inputs = {f"{scope}.{each.name}": each for each in inputs}
        self._outputs = {f"{scope}.{each.name}": each for each in outputs}
        for name, one in self._inputs.items():
            layout.add(name, (max_bs * one.rows, *one.shape), one.dtype)
        for buffer in metadata.buffers:
            layout.add(buffer.name, buffer.shape, buffer.dtype)
        for name, one in self._outputs.items():
            layout.add(name, (max_bs * one.rows, *one.shape), one.dtype)
        self._fill = fill
        self._arena: Arena = layout.build(fill, device)
        self._row_views: dict[tuple[str, int], Tensor] = {}
        self.workspace = ArenaWorkspace(self._arena)

    def __getitem__(self, name: str) -> Tensor:
        return self._arena[name]

    def rows(self, name: str, count: int) -> Tensor:
        """The first ``count`` rows of a buffer; views are made once, since every replay needs the same few."""
        view = self._row_views.get((name, count))
        if view is None:
            view = self._row_views[name, count] = self._arena[name][:count]
        return view

    def load(self, inputs: object) -> None:
        """Copy live rows into the first rows of their buffers, all in one call: one launch per dtype on a GPU."""
        values = [getattr(inputs, one.name) for one in self._inputs.values()]
        rows = [self.rows(name, value.shape[0]) for name, value in zip(self._inputs, values, strict=True)]
        torch._foreach_copy_(rows, values)

    def store(self, outputs: object, bs: int) -> None:
        """Copy what a forward over ``bs`` requests computed into the static outputs."""
        for name, one in self._outputs.items():
            self.rows(name, bs * one.rows).copy_(getattr(outputs, one.name))

    def inputs_of(self, bs: int) -> dict[str, Tensor]:
        """Views of the inputs of the first ``bs`` requests, by field."""
        return {one.name: self.rows(name, bs * one.rows) for name, one in self._inputs.items()}

    def outputs_of(self, bs: int) -> dict[str, Tensor]:
        """Views of the outputs of the first ``bs`` requests, by field."""
        return {one.name: self.rows(name, bs * one.rows) for name, one in self._outputs.items()}

    def zero_inputs(self) -> None:
        """Zeros in every input."""
        for name in self._inputs:
            self._arena[name].zero_()

    def release_inputs(self) -> None:
        """Let the inputs hold what released memory holds until the next replay loads them."""
        if self._fill.poisons:
            for name in self._inputs:
                self._fill.paint(self._arena[name])

    def check_guards(self) -> list[GuardViolation]:
        """Guard regions damaged since the last call."""
        return self._arena.check_guards()

    def watch_guards(self) -> None:
        """See :meth:`Arena.watch_guards`."""
        self._arena.watch_guards()

    def damage_seen(self) -> list[GuardViolation]:
        """See :meth:`Arena.damage_seen`."""
        return self._arena.damage_seen()


Inputs = TypeVar("Inputs")


@dataclass(frozen=True)
class Planned(Generic[Inputs]):
    """A replay that lacks nothing but its launch: ``padded`` views loaded static inputs of ``bs`` rows, ``metadata``
    what was planned for them. There is one set of buffers, so it holds until the runner is used otherwise."""

    bs: int
    padded: Inputs
    metadata: list[Metadata]


class GraphRunner(ABC, Generic[Inputs]):
    """One forward over static buffers at captured batch sizes.

    On CUDA :meth:`capture` turns it into graphs; elsewhere, or before that, a replay calls it directly.

    Args:
        inputs: the record of its inputs; its fields are named as the buffers' inputs are.
    """

    def __init__(
        self,
        inputs: type[Inputs],
        capture_bs: tuple[int, ...],
        buffers: StaticBuffers,
        attention: AttentionBackend,
        pool: KVPool,
    ) -> None:
        self._record = inputs
        self._views: dict[int, Inputs] = {}
        self.capture_bs = capture_bs
        self.buffers = buffers
        self._attention = attention
        self._pool = pool
        self.captured: dict[int, CapturedForward] = {}

    def can_run(self, batch_size: int) -> bool:
        """Say if some captured size holds ``batch_size`` requests; otherwise they run eagerly."""
        return padded_size(self.capture_bs, batch_size) is not None

    def check_guards(self) -> list[GuardViolation]:
        """Overruns of this runner's static buffers since the last call."""
        return self.buffers.check_guards()

    def damage_seen(self) -> list[GuardViolation]:
        """Overruns that reached the host before the device was lost."""
        return self.buffers.damage_seen()

    def capture(self, graph_pool: Any) -> None:
        """Capture every batch size, the largest first, so that the others find its memory in the pool."""
        for bs in reversed(self.capture_bs):
            self._blank()
            padded = self._padded(bs)
            metadata = self._plan(padded, (0,) * bs)
            bound = self._bind(padded, metadata, graph=True)
            self.captured[bs] = CapturedForward(partial(self._forward, padded, bound), bound, graph_pool)
        self.buffers.release_inputs()

    def _blank(self) -> None:
        """Make every row of the inputs a padding row."""
        self.buffers.zero_inputs()

    def _padded(self, bs: int) -> Inputs:
        """Static inputs of ``bs`` requests."""
        if bs not in self._views:
            self._views[bs] = self._record(**self.buffers.inputs_of(bs))
        return self._views[bs]

    @abstractmethod
    def _plan(self, padded: Inputs, seq_lens_cpu: tuple[int, ...]) -> list[Metadata]:
        """Metadata of each attention in the forward, written to static buffers."""

    @abstractmethod
    def _locs(self, padded: Inputs) -> list[Tensor]:
        """Slots that each attention in the forward writes, int64."""

    @abstractmethod
    def _forward(self, padded: Inputs, attentions: Sequence[LayerAttention]) -> None:
        """Compute, and store what comes out in the static outputs."""

    def _bind(self, padded: Inputs, metadata: Sequence[Metadata], *, graph: bool) -> list[BoundAttention]:
        return [
            self._attention.bind(plan, self._pool, loc, graph=graph)
            for plan, loc in zip(metadata, self._locs(padded), strict=True)
        ]

    def _replay(self, bs: int, padded: Inputs, seq_lens_cpu: tuple[int, ...]) -> None:
        """Plan and run ``padded``; ``seq_lens_cpu`` are the lengths of its live rows."""
        self._launch(self._planned(bs, padded, self._plan(padded, padded_lens(seq_lens_cpu, bs))))

    def _planned(self, bs: int, padded: Inputs, metadata: list[Metadata]) -> Planned[Inputs]:
        self.buffers.watch_guards()  # a plan that overran may be what the forward dies of
        return Planned(bs, padded, metadata)

    def _launch(self, planned: Planned[Inputs]) -> None:
        captured = self.captured.get(planned.bs)
        if captured is None:
            self._forward(planned.padded, self._bind(planned.padded, planned.metadata, graph=False))
        else:
            captured.replay(planned.metadata)
        self.buffers.release_inputs()


def padded_size(capture_bs: Sequence[int], raw_bs: int) -> int | None:
    """Smallest captured batch size that holds ``raw_bs``; None when none does and the batch runs eagerly."""
    for size in capture_bs:
        if size >= raw_bs:
            return size
    return None


def padded_lens(seq_lens_cpu: tuple[int, ...], bs: int) -> tuple[int, ...]:
    """Lengths of ``bs`` rows: those of the live ones, then 0 for padding."""
    return seq_lens_cpu + (0,) * (bs - len(seq_lens_cpu))
