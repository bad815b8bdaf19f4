"""What the three runners share: captured sizes, one arena of static buffers, and the life of a buffer.

A replay copies live rows into static inputs, clears the rows it pads, plans attention into static metadata,
runs the captured callable and returns views of static outputs. Two rules follow: outputs are valid until the
next replay, and inputs are only valid during one, because runners of one process may share that memory.
Between replays the fill policy therefore treats inputs as released.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdebug.engine.attention.workspace import ArenaWorkspace
from specdebug.engine.memory.arena import Arena, ArenaLayout, GuardViolation
from specdebug.engine.memory.fill import FillPolicy

BufferSpec = tuple[str, tuple[int, ...], torch.dtype]


class StaticBuffers:
    """One runner's arena: declared inputs, the planner's metadata, then outputs."""

    def __init__(
        self,
        inputs: Sequence[BufferSpec],
        metadata: ArenaLayout,
        outputs: Sequence[BufferSpec],
        fill: FillPolicy,
        device: torch.device,
    ) -> None:
        layout = ArenaLayout(guards=metadata.guards)
        for name, shape, dtype in inputs:
            layout.add(name, shape, dtype)
        for buffer in metadata.buffers:
            layout.add(buffer.name, buffer.shape, buffer.dtype)
        for name, shape, dtype in outputs:
            layout.add(name, shape, dtype)
        self._fill = fill
        self._arena: Arena = layout.build(fill, device)
        self._inputs = [self._arena[name] for name, _, _ in inputs]
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

    def release_inputs(self) -> None:
        """Inputs belong to nobody until the next replay."""
        if self._fill.poisons:
            for buffer in self._inputs:
                self._fill.paint(buffer)

    def check_guards(self) -> list[GuardViolation]:
        """Guard regions damaged since the last call."""
        return self._arena.check_guards()


class GraphRunner:
    """What a batch needs to know before it is replayed, and what is checked after."""

    capture_bs: tuple[int, ...]
    buffers: StaticBuffers

    def can_run(self, batch_size: int) -> bool:
        """Whether some captured size holds ``batch_size`` requests; otherwise they run eagerly."""
        return padded_size(self.capture_bs, batch_size) is not None

    def check_guards(self) -> list[GuardViolation]:
        """Overruns of this runner's static buffers since the last call."""
        return self.buffers.check_guards()


def padded_size(capture_bs: Sequence[int], raw_bs: int) -> int | None:
    """Smallest captured batch size that holds ``raw_bs``; None when none does and the batch runs eagerly."""
    for size in capture_bs:
        if size >= raw_bs:
            return size
    return None
