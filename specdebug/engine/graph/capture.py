"""CUDA graphs of forwards over static buffers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from specdebug import async_probe
from specdebug.engine.attention.backend import BoundAttention
from specdebug.engine.textbook.attention.planner import Metadata

_WARM_UPS = 2


@contextmanager
def _no_collection() -> Iterator[None]:
    """A graph of an engine that is garbage by now, freed in the middle of a capture, would spoil the capture."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


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
        with _no_collection(), graph, async_probe.capturing() as self._sites:
            forward()

    def replay(self, metadata: Sequence[Metadata]) -> None:
        """Launch it with attention planned for ``metadata``."""
        for attention, plan in zip(self._attentions, metadata, strict=True):
            attention.replan(plan)
        self.graph.replay()
        self._sites.replayed()
