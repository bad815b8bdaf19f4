"""The runners share captured sizes, one arena of static buffers each, and the life of a buffer.

A replay copies live rows into static inputs, clears the rows it pads, plans attention into static metadata, runs the
captured callable and returns views of static outputs. Outputs are valid until the next replay, inputs only from when
they are loaded until the callable has run, because memory may be shared: between replays they count as released.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from specdebug.engine import progress
from specdebug.engine.attention.backend import AttentionBackend, BoundAttention
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.attention.planner import AttentionPlanner
from specdebug.engine.attention.workspace import ArenaWorkspace
from specdebug.engine.config import EngineConfig
from specdebug.engine.graph.capture import CapturedForward
from specdebug.engine.memory.arena import Arena, ArenaLayout, GuardViolation
from specdebug.engine.memory.fill import FillPolicy
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.observer import Forward, Observers


@dataclass(frozen=True)
class StaticBuffer:
    """One static input or output of a runner, a field of its records: ``rows`` of ``shape`` for each request."""

    name: str
    rows: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class StaticBuffers(Arena):
    """One runner's arena: declared inputs, the planner's metadata, then outputs; it names inputs ``scope.name``."""

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
        super().__init__(layout, fill, device)
        self._fill = fill
        self._row_views: dict[tuple[str, int], Tensor] = {}
        self.workspace = ArenaWorkspace(self)

    def rows(self, name: str, count: int) -> Tensor:
        """The first ``count`` rows of a buffer; views are made once, since every replay needs the same few."""
        view = self._row_views.get((name, count))
        if view is None:
            view = self._row_views[name, count] = self[name][:count]
        return view

    def load(self, inputs: object) -> None:
        """Copy live rows into the first rows of their buffers, all in one call: one launch per dtype on a GPU."""
        values = [getattr(inputs, one.name) for one in self._inputs.values()]
        rows = [self.rows(name, value.shape[0]) for name, value in zip(self._inputs, values, strict=True)]
        torch._foreach_copy_(rows, values)

    def store(self, outputs: object, bs: int) -> None:
        """Copy the results of a forward over ``bs`` requests into the static outputs."""
        for name, one in self._outputs.items():
            self.rows(name, bs * one.rows).copy_(getattr(outputs, one.name))

    def inputs_of(self, bs: int) -> dict[str, Tensor]:
        """Views of the inputs of the first ``bs`` requests, by field."""
        return {one.name: self.rows(name, bs * one.rows) for name, one in self._inputs.items()}

    def outputs_of(self, bs: int) -> dict[str, Tensor]:
        """Views of the outputs of the first ``bs`` requests, by field."""
        return {one.name: self.rows(name, bs * one.rows) for name, one in self._outputs.items()}

    def zero_inputs(self) -> None:
        """Zero every input."""
        for name in self._inputs:
            self[name].zero_()

    def release_inputs(self) -> None:
        """Let the inputs hold what released memory holds until the next replay loads them."""
        if self._fill.poisons:
            for name in self._inputs:
                self._fill.paint(self[name])


class RunnerInputs(Protocol):
    """The fields that the inputs of every runner have: int64 [B], [B], and slots by token, None if none is written."""

    @property
    def req_pool_indices(self) -> Tensor: ...
    @property
    def seq_lens(self) -> Tensor: ...
    @property
    def out_cache_loc(self) -> Tensor | None: ...


Inputs = TypeVar("Inputs", bound=RunnerInputs)
Outputs = TypeVar("Outputs")


@dataclass(frozen=True)
class Planned(Generic[Inputs]):
    """A replay that lacks nothing but its launch: ``padded`` views loaded static inputs of ``bs`` rows, ``metadata``
    is their plan. There is one set of buffers, so it holds until the runner is used otherwise."""

    bs: int
    padded: Inputs
    metadata: list[Metadata]


@dataclass(frozen=True)
class RunnerParts:
    """The target's worker and every runner of an engine are made with these."""

    config: EngineConfig
    planner: AttentionPlanner
    fill: FillPolicy
    dtype: torch.dtype
    device: torch.device
    observers: Observers


class GraphRunner(ABC, Generic[Inputs, Outputs]):
    """One forward over static buffers at captured batch sizes.

    On CUDA :meth:`capture` turns it into graphs; elsewhere, or before that, a replay calls it directly. Padding rows
    are empty requests on slot 0 unless a runner says otherwise.
    """

    def __init__(
        self,
        parts: RunnerParts,
        scope: Forward,
        attention: AttentionBackend,
        pool: KVPool,
        *,
        records: tuple[Callable[..., Inputs], Callable[..., Outputs]],
        inputs: Sequence[StaticBuffer],
        outputs: Sequence[StaticBuffer],
        declare: Callable[[ArenaLayout, int], None],
    ) -> None:
        """Make the buffers. ``records``: the classes of inputs and outputs, whose fields are named as the buffers are.
        ``declare``: declares the static metadata of a batch of the largest size."""
        self._scope: Forward = scope
        self._observers = parts.observers
        self._record, self._result = records
        self._views: dict[int, Inputs] = {}
        self._planner = parts.planner
        self._attention = attention
        self._pool = pool
        self.captured: dict[int, CapturedForward] = {}
        self.capture_bs = parts.config.cuda_graph.batch_sizes
        max_bs, metadata = self.capture_bs[-1], ArenaLayout(guards=parts.config.memory.guards)
        declare(metadata, max_bs)
        self.buffers = StaticBuffers(
            scope, max_bs, inputs=inputs, metadata=metadata, outputs=outputs, fill=parts.fill, device=parts.device
        )

    def can_run(self, batch_size: int) -> bool:
        """Return True if some captured size holds ``batch_size`` requests; otherwise they run eagerly."""
        return padded_size(self.capture_bs, batch_size) is not None

    def check_guards(self) -> list[GuardViolation]:
        """Overruns of this runner's static buffers since the last call."""
        return self.buffers.check_guards()

    def damage_seen(self) -> list[GuardViolation]:
        """Overruns that reached the host before the device was lost."""
        return self.buffers.damage_seen()

    def capture(self, graph_pool: Any) -> None:
        """Capture every batch size, the largest first, so that the others find its memory in the pool."""
        named, sizes = self._scope.replace("_", " "), ", ".join(map(str, self.capture_bs))
        progress.report(f"capturing {named} graphs, batch {sizes}")
        for bs in reversed(self.capture_bs):
            self._blank()
            padded = self._padded(bs)
            metadata = self._plan(padded, (0,) * bs)
            bound = self._bind(padded, metadata, graph=True)
            self.captured[bs] = CapturedForward(partial(self._forward, bs, padded, bound), bound, graph_pool)
        self.buffers.release_inputs()

    def replay(self, inputs: Inputs, seq_lens_cpu: tuple[int, ...]) -> Outputs:
        """Run at the padded size; the result views static outputs, valid until the next replay."""
        bs, padded = self._load(inputs)
        return self._replay(bs, padded, seq_lens_cpu)

    def _load(self, inputs: Inputs) -> tuple[int, Inputs]:
        """Load ``inputs``, and padding behind them; the padded size, and the static inputs of that size."""
        raw_bs = inputs.seq_lens.numel()
        bs = padded_size(self.capture_bs, raw_bs)
        assert bs is not None
        if bs != raw_bs:
            self._blank()
        self.buffers.load(inputs)
        return bs, self._padded(bs)

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
    def _run(self, padded: Inputs, attentions: Sequence[LayerAttention]) -> Outputs:
        """Compute the forward."""

    def _locs(self, padded: Inputs) -> Sequence[Tensor | None]:
        """Slots that each attention in the forward writes, int64; None for one that writes none."""
        return [padded.out_cache_loc]

    def _forward(self, bs: int, padded: Inputs, attentions: Sequence[LayerAttention]) -> None:
        self.buffers.store(self._run(padded, attentions), bs)

    def _bind(self, padded: Inputs, metadata: Sequence[Metadata], *, graph: bool) -> list[BoundAttention]:
        return [
            self._attention.bind(plan, self._pool, loc, graph=graph)
            for plan, loc in zip(metadata, self._locs(padded), strict=True)
        ]

    def _replay(self, bs: int, padded: Inputs, seq_lens_cpu: tuple[int, ...]) -> Outputs:
        """Plan and run ``padded``; ``seq_lens_cpu`` are the lengths of its live rows."""
        planned = self._planned(bs, padded, self._plan(padded, padded_lens(seq_lens_cpu, bs)))
        self._launch(planned, len(seq_lens_cpu))
        return self._outputs(len(seq_lens_cpu))

    def _outputs(self, bs: int) -> Outputs:
        return self._result(**self.buffers.outputs_of(bs))

    def _planned(self, bs: int, padded: Inputs, metadata: list[Metadata]) -> Planned[Inputs]:
        self.buffers.watch_guards()  # a plan that overran may be what the forward dies of
        return Planned(bs, padded, metadata)

    def _launch(self, planned: Planned[Inputs], batch_size: int) -> None:
        """Run what is planned; ``batch_size``: its live rows."""
        self._observers.launched(self._scope, batch_size, planned.bs)
        captured = self.captured.get(planned.bs)
        if captured is None:
            bound = self._bind(planned.padded, planned.metadata, graph=False)
            self._forward(planned.bs, planned.padded, bound)
        else:
            captured.replay(planned.metadata)
        self.buffers.release_inputs()


def padded_size(capture_bs: Sequence[int], raw_bs: int) -> int | None:
    """Smallest captured batch size that holds ``raw_bs``; None when none does and the batch runs eagerly."""
    return next((size for size in capture_bs if size >= raw_bs), None)


def padded_lens(seq_lens_cpu: tuple[int, ...], bs: int) -> tuple[int, ...]:
    """Lengths of ``bs`` rows: those of the live ones, then 0 for padding."""
    return seq_lens_cpu + (0,) * (bs - len(seq_lens_cpu))
