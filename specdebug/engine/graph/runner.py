"""The forwards of a decode step, and how one runs: as a graph over static buffers where a runner holds its batch, or
eagerly.

Runners share captured sizes; each has an arena of static buffers. A replay copies live rows into static inputs, clears
the rows it pads, plans attention into static metadata, runs the captured callable and returns views of static outputs.
Outputs are valid until the next replay, inputs only from when they are loaded until the callable has run, because
memory may be shared: between replays they count as released.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.engine import progress
from specdebug.engine.attention.backend import AttentionBackend, BoundAttention
from specdebug.engine.config import EngineConfig
from specdebug.engine.memory.arena import Arena, ArenaLayout, FillPolicy, GuardViolation
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.textbook.attention.planner import AttentionPlanner, Metadata, Workspace
from specdebug.events import Forward, Launched, Observers


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


_WARM_UPS = 2


class CapturedForward:
    """One forward at one batch size, which reads and writes static buffers."""

    def __init__(self, forward: Callable[[], None], attentions: Sequence[BoundAttention], pool: Any) -> None:
        """Run ``forward`` eagerly first, on the capture stream, so that nothing is compiled or tuned in the capture.

        pool: a graph pool handle; graphs that are replayed one after another may share one.
        """
        self._attentions = tuple(attentions)
        self.graph = torch.cuda.CUDAGraph()
        cuda: Any = torch.cuda  # torch annotates only some of its CUDA classes
        stream = cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.graph(self.graph, pool=pool, stream=stream)
        collecting = gc.isenabled()
        gc.disable()  # a graph of an engine that is garbage by now, freed in a capture, would spoil it
        try:
            with graph, async_probe.capturing() as self._sites:
                forward()
        finally:
            if collecting:
                gc.enable()

    def replay(self, metadata: Sequence[Metadata]) -> None:
        """Launch it with attention planned for ``metadata``."""
        for attention, plan in zip(self._attentions, metadata, strict=True):
            attention.replan(plan)
        self.graph.replay()
        self._sites.replayed()


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

    def views(self, bs: int, *, outputs: bool) -> dict[str, Tensor]:
        """Views of the inputs or outputs of the first ``bs`` requests, by field."""
        declared = self._outputs if outputs else self._inputs
        return {one.name: self.rows(name, bs * one.rows) for name, one in declared.items()}

    def release_inputs(self) -> None:
        """Let the inputs hold what released memory holds until the next replay loads them."""
        if self._fill.poisons:
            for name in self._inputs:
                self._fill.paint(self[name])


@dataclass(frozen=True)
class Planned(Generic[Inputs]):
    """A replay that lacks nothing but its launch: ``padded`` views loaded static inputs of ``bs`` rows, ``metadata``
    is their plan. There is one set of buffers, so it holds until the runner is used otherwise."""

    bs: int
    padded: Inputs
    metadata: list[Metadata]


def zero(inputs: object) -> None:
    """Make every row of static inputs a padding row: an empty request on slot 0."""
    for value in vars(inputs).values():
        value.zero_()


@dataclass(frozen=True)
class GraphTable(Generic[Inputs, Outputs]):
    """A forward's static buffers, and its padding.

    records: the classes of inputs and outputs, whose fields are named as the buffers are.
    inputs, outputs: the buffers.
    declare: declares the static metadata of a batch of the largest size.
    pad: makes every row of static inputs a padding row.
    probe: looks at loaded inputs, padded rows included: they are planned, embedded, gathered and attended like live
      ones.
    """

    records: tuple[Callable[..., Inputs], Callable[..., Outputs]]
    inputs: Sequence[StaticBuffer]
    outputs: Sequence[StaticBuffer]
    declare: Callable[[ArenaLayout, int], None]
    pad: Callable[[Inputs], None] = zero
    probe: Callable[[Inputs], None] | None = None


class GraphRunner(Generic[Inputs, Outputs]):
    """One forward over static buffers at captured batch sizes.

    On CUDA :meth:`capture` turns it into graphs; elsewhere, or before that, a replay calls it directly.
    """

    def __init__(
        self,
        parts: EngineParts,
        forward: StepForward[Inputs, Outputs],
        attention: AttentionBackend,
        table: GraphTable[Inputs, Outputs],
    ) -> None:
        """Make the buffers."""
        self._forward = forward
        self._observers = parts.observers
        self._table = table
        self._views: dict[int, Inputs] = {}
        self._planner = parts.planner
        self._attention = attention
        self.captured: dict[int, CapturedForward] = {}
        self.capture_bs = parts.config.cuda_graph.batch_sizes
        max_bs, metadata = self.capture_bs[-1], ArenaLayout(guards=parts.config.memory.guards)
        table.declare(metadata, max_bs)
        self.buffers = StaticBuffers(
            forward.name,
            max_bs,
            inputs=table.inputs,
            metadata=metadata,
            outputs=table.outputs,
            fill=parts.fill,
            device=parts.device,
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
        named, sizes = self._forward.name.replace("_", " "), ", ".join(map(str, self.capture_bs))
        progress.report(f"capturing {named} graphs, batch {sizes}")
        for bs in reversed(self.capture_bs):
            padded = self._padded(bs)
            zero(padded)
            self._table.pad(padded)
            metadata = self._plan(padded, (0,) * bs)
            bound = self._bind(padded, metadata, graph=True)
            self.captured[bs] = CapturedForward(partial(self._compute, bs, padded, bound), bound, graph_pool)
        self.buffers.release_inputs()

    def replay(self, inputs: Inputs, lens_cpu: tuple[int, ...]) -> Outputs:
        """Run at the padded size; the result views static outputs, valid until the next replay."""
        return self.launch(self.prepare(inputs, lens_cpu), len(lens_cpu))

    def prepare(self, inputs: Inputs, lens_cpu: tuple[int, ...], *, slack: int = 0) -> Planned[Inputs]:
        """Load ``inputs`` with padding behind them, and plan attention for the next launch; ``lens_cpu`` may exceed the
        lengths, in all by ``slack`` at most."""
        raw_bs = len(lens_cpu)
        bs = padded_size(self.capture_bs, raw_bs)
        assert bs is not None
        if bs != raw_bs:
            self._table.pad(self._padded(self.capture_bs[-1]))
        self.buffers.load(inputs)
        padded = self._padded(bs)
        if self._table.probe is not None:
            self._table.probe(padded)
        metadata = self._plan(padded, padded_lens(lens_cpu, bs), slack)
        self.buffers.watch_guards()  # a plan that overran may be what the forward dies of
        return Planned(bs, padded, metadata)

    def launch(self, planned: Planned[Inputs], batch_size: int) -> Outputs:
        """Run what was prepared last, of which ``batch_size`` rows are live; the result is that of :meth:`replay`."""
        self._observers.tell(Launched, self._forward.name, batch_size, planned.bs)
        captured = self.captured.get(planned.bs)
        if captured is None:
            self._compute(planned.bs, planned.padded, self._bind(planned.padded, planned.metadata, graph=False))
        else:
            captured.replay(planned.metadata)
        self.buffers.release_inputs()
        return self._table.records[1](**self.buffers.views(batch_size, outputs=True))

    def abandon(self) -> None:
        """Release the inputs of what was prepared: it will not be launched."""
        self.buffers.release_inputs()

    def _padded(self, bs: int) -> Inputs:
        """Static inputs of ``bs`` requests."""
        if bs not in self._views:
            self._views[bs] = self._table.records[0](**self.buffers.views(bs, outputs=False))
        return self._views[bs]

    def _plan(self, padded: Inputs, lens_cpu: tuple[int, ...], slack: int = 0) -> list[Metadata]:
        return self._forward.plan(self._planner, padded, lens_cpu, self.buffers, slack)

    def _bind(self, padded: Inputs, metadata: Sequence[Metadata], *, graph: bool) -> list[BoundAttention]:
        return [
            self._attention.bind(plan, self._forward.pool, loc, graph=graph)
            for plan, loc in zip(metadata, self._forward.locs(padded), strict=True)
        ]

    def _compute(self, bs: int, padded: Inputs, attentions: Sequence[LayerAttention]) -> None:
        self.buffers.store(self._forward.run(padded, attentions), bs)


@dataclass(frozen=True)
class Runners:
    """The graph runners of a step's forwards; None for a stage that computes nothing, and where the configuration has
    no graph runners, so that every batch runs eagerly."""

    draft: GraphRunner[Any, Any] | None
    verify: GraphRunner[Any, Any] | None
    extend: GraphRunner[Any, Any] | None

    @property
    def all(self) -> list[GraphRunner[Any, Any]]:
        """Those that there are."""
        return [runner for runner in (self.verify, self.draft, self.extend) if runner is not None]


def launcher(
    parts: EngineParts,
    forward: StepForward[Inputs, Outputs],
    attention: AttentionBackend,
    workspace: Workspace,
    table: GraphTable[Inputs, Outputs] | None,
) -> ForwardLauncher[Inputs, Outputs]:
    """What runs ``forward``: with a graph runner if there is a table and the configuration has runners."""
    runner = None
    if table is not None and parts.config.cuda_graph.enabled:
        runner = GraphRunner(parts, forward, attention, table)
    return ForwardLauncher(forward, parts, attention, workspace, runner)


def capture(runners: Sequence[GraphRunner[Any, Any]], device: torch.device) -> None:
    """Capture the runners' graphs, in this order, where there is a GPU."""
    if device.type == "cuda" and runners:
        pool = torch.cuda.graph_pool_handle()  # they run one after another, so they share it
        for runner in runners:
            runner.capture(pool)


def padded_size(capture_bs: Sequence[int], raw_bs: int) -> int | None:
    """Smallest captured batch size that holds ``raw_bs``; None when none does and the batch runs eagerly."""
    return next((size for size in capture_bs if size >= raw_bs), None)


def padded_lens(seq_lens_cpu: tuple[int, ...], bs: int) -> tuple[int, ...]:
    """Lengths of ``bs`` rows: those of the live ones, then 0 for padding."""
    return seq_lens_cpu + (0,) * (bs - len(seq_lens_cpu))
