"""An engine of random weights that is timed step by step, and the rows of what was measured."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from specdebug import async_probe
from specdebug.diverge.recorder import HashRecorder
from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.engine.textbook.engine import Models

sys.path.insert(0, str(Path(__file__).parent))
import seeds
from bounds import Bound, verdict

STEPS = 3
EAGLE = {"algorithm": "EAGLE", "num_steps": STEPS}
PROMPT = 512
CONTEXT = 6144
SLOTS_EACH = 1024
"""Slots of an engine for each request at a time, more than any has when its steps are over."""


@dataclass(frozen=True)
class Row:
    """One line of the table; ``unit`` says what the numbers are, ``bound`` what the median must keep."""

    what: str
    median: float
    low: float
    high: float
    unit: str
    bound: Bound | None = None

    @classmethod
    def of(cls, what: str, values: Sequence[float], unit: str, bound: Bound | None = None) -> Row:
        ordered = sorted(values)
        quarter = len(ordered) // 4
        return cls(what, statistics.median(ordered), ordered[quarter], ordered[-1 - quarter], unit, bound)


def bandwidth() -> float:
    """Bytes a second of reading: the better of a large copy (read and written) and a large sum."""
    source = torch.empty(2**30, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.empty_like(source)
    copy = timed(lambda: target.copy_(source), 20)
    total = timed(lambda: source.view(torch.int32).sum(), 20)
    size = source.numel() * source.element_size()
    return max(2 * size / copy, size / total)


def timed(function: Callable[[], object], repeats: int) -> float:
    """Seconds a call, by device events around ``repeats`` of them."""
    event: Any = torch.cuda.Event
    start, stop = event(enable_timing=True), event(enable_timing=True)
    function()
    start.record()
    for _ in range(repeats):
        function()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop)) / 1e3 / repeats


class Served:
    """An engine with the probes, and the recorder, it was captured with; only one is active at a time.

    probes: a mode of ours, or ``expressions``: those that they replace, at the same sites. spec: the engine's
    ``speculative``.
    """

    def __init__(
        self,
        models: Models,
        batch: int,
        *,
        backend: str,
        probes: str,
        spec: Mapping[str, Any] | None = EAGLE,
        recorder: HashRecorder | None = None,
    ) -> None:
        async_probe.on_site(None)
        if recorder is not None:
            recorder.listen()
        self._expressions = probes == "expressions"
        seeds.use(self._expressions)
        async_probe.configure("off" if self._expressions else probes)
        embedding = models.target.embedding
        self._on_gpu = embedding.is_cuda
        self.engine = Engine(
            EngineConfig.from_dict(
                {
                    "device": str(embedding.device),
                    "dtype": str(embedding.dtype).removeprefix("torch."),
                    "attention_backend": backend,
                    "context_length": CONTEXT,
                    "max_running_requests": batch,
                    "radix_cache": False,
                    "speculative": spec,
                    "cuda_graph": {"max_bs": batch, "capture_bs": [batch]},
                    "memory": {"num_slots": max(CONTEXT, batch * SLOTS_EACH), "fill": "zeros"},
                }
            ),
            models,
        )
        if recorder is not None:
            recorder.attach(self.engine)
        state = ("_gate", "_active", "_recorder", "_hook", "_replay_hook")
        self._probes = {name: getattr(async_probe.probes, name) for name in state}
        self._vocab = models.target.config.vocab_size
        self._count = 0

    def activate(self) -> None:
        """Probe as at capture: a recorder's memory belongs to the graphs that write it."""
        seeds.use(self._expressions)
        for name, value in self._probes.items():
            setattr(async_probe.probes, name, value)

    def add(self, requests: int, tokens: int = PROMPT, new_tokens: int = 5000) -> None:
        generator = torch.Generator().manual_seed(self._count)
        for _ in range(requests):
            prompt = torch.randint(0, self._vocab, (tokens,), generator=generator).tolist()
            self.engine.add_request(f"r{self._count}", prompt, SamplingParams(max_new_tokens=new_tokens))
            self._count += 1

    def steps(self, count: int) -> float:
        """Seconds a step, the device idle before and after."""
        self.activate()
        self._wait()
        began = time.perf_counter()
        for _ in range(count):
            self.engine.step()
        self._wait()
        return (time.perf_counter() - began) / count

    def _wait(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()

    def drain(self) -> None:
        for rid, request in list(self.engine.requests.items()):
            if not request.finished:
                self.engine.abort(rid)


def release(*served: Served) -> None:
    """Give an engine's memory back before the next is made."""
    for one in served:
        one.drain()
        one.__dict__.clear()
    gc.collect()
    torch.cuda.empty_cache()


def show(rows: Sequence[Row], title: str, *, no_bounds: bool) -> int:
    """Print the table of what was measured and the bounds that are missed; return the exit code."""
    table = Table(title=title)
    for column in ("what", "median", "quartiles", "unit", "bound"):
        table.add_column(column)
    for row in rows:
        quartiles = f"{row.low:.3g} to {row.high:.3g}"
        table.add_row(row.what, f"{row.median:.3g}", quartiles, row.unit, str(row.bound or ""))
    Console(width=120).print(table)
    return verdict(((row.what, row.median, row.bound) for row in rows), no_bounds=no_bounds)
