"""What a probe costs a GPU: our kernel against the expressions it replaces, in CUDA graphs and on a gigabyte.

Small tensors are probed many times in one graph, whose time is divided; ours and theirs are replayed in turn, and the
ratios are of neighbours. Intervals are quartiles. ``python benchmarks/gpu/probes.py OUT [--rounds N]`` prints the table
and writes it to ``OUT/probes.json``; ``rows`` gives the numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from rich.console import Console
from rich.table import Table
from torch import Tensor

from specdebug import async_probe
from specdebug.async_probe import grouped, maybe_detect_nonfinite, maybe_detect_oob

sys.path.insert(0, str(Path(__file__).parent))
from bounds import Bound, add_flag, verdict
from served import bandwidth

VOCAB = 128_256
GIGABYTE = 2**30
Probe = Callable[[], None]


@dataclass(frozen=True)
class Row:
    """One comparison; ``*_low`` and ``*_high`` are quartiles. Without anything to compare with, ours only."""

    what: str
    unit: str
    ours: float
    ours_low: float
    ours_high: float
    theirs: float | None = None
    theirs_low: float | None = None
    theirs_high: float | None = None
    ratio: float | None = None
    """Theirs over ours."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    bound: Bound | None = None
    """Of the ratio where there is one, else of ours."""

    @property
    def bounded(self) -> float:
        """Return the figure that the bound is of."""
        return self.ours if self.ratio is None else self.ratio


def rows(rounds: int = 40) -> list[Row]:
    """Measure everything on the current GPU. Leaves the probes off."""
    try:
        async_probe.configure("record")
        async_probe.prepare("cuda")
        found = [_empty(rounds)]
        found += [_nonfinite(batch, VOCAB, rounds, bound) for batch, bound in _BATCHES]
        found += [_nonfinite(1, 4096, rounds, None), _indices(rounds), _three_at_once(rounds)]
        copied = bandwidth() / 1e12
        found.append(Row("reading, by a plain copy or a sum", "TB/s", copied, copied, copied))
        for dtype, part in _TYPES:
            found.append(_gigabyte(dtype, rounds, None if part is None else Bound(at_least=round(part * copied, 2))))
        found.append(_on_the_host(rounds))
        if async_probe.drain():
            raise AssertionError("clean tensors must have no findings")
        async_probe.configure("assert")
        found.append(_nonfinite(1, VOCAB, rounds, None, "asserting: "))
    finally:
        async_probe.configure("off")
    return found


_BATCHES = ((1, Bound(at_least=22)), (8, None), (64, Bound(at_least=9)), (512, None))
_TYPES = ((torch.bfloat16, 0.9), (torch.float32, None), (torch.float8_e4m3fn, None))
"""Types, and the part of the card's own rate of reading that a probe of a gigabyte must reach."""
"""Types, and the part of what the card itself reads that a probe of a gigabyte must reach."""


def _theirs_nonfinite(tensor: Tensor) -> None:
    torch._assert_async(~torch.isnan(tensor).any(), "nan")
    torch._assert_async(~torch.isinf(tensor).any(), "inf")


def _theirs_bounds(ids: Tensor) -> None:
    torch._assert_async(ids.min() >= 0, "below")
    torch._assert_async(ids.max() < VOCAB, "not below")


def _nonfinite(batch: int, width: int, rounds: int, bound: Bound | None, prefix: str = "") -> Row:
    tensor = torch.randn((batch, width), device="cuda").to(torch.bfloat16)
    what = f"{prefix}nan + inf, bf16 [{batch}, {width}]"
    repeats = 200 if tensor.numel() < 2**22 else 20
    return _compared(
        what,
        _graph(lambda: maybe_detect_nonfinite(tensor, "bench.nonfinite"), repeats),
        _graph(lambda: _theirs_nonfinite(tensor), repeats),
        rounds,
        bound,
    )


def _indices(rounds: int) -> Row:
    ids = torch.randint(0, VOCAB, (512,), device="cuda")
    return _compared(
        "oob, 512 int64",
        _graph(lambda: maybe_detect_oob(ids, 0, VOCAB, "bench.oob"), 200),
        _graph(lambda: _theirs_bounds(ids), 200),
        rounds,
        Bound(at_least=7.0),
    )


def _three_at_once(rounds: int) -> Row:
    """Sites next to each other share a launch."""
    first, second = torch.randint(0, VOCAB, (2, 64), device="cuda").unbind(0)
    logits = torch.randn((8, VOCAB), device="cuda").to(torch.bfloat16)

    def ours() -> None:
        with grouped():
            maybe_detect_oob(first, 0, VOCAB, "bench.first")
            maybe_detect_oob(second, 0, VOCAB, "bench.second")
            maybe_detect_nonfinite(logits, "bench.logits")

    def theirs() -> None:
        _theirs_bounds(first)
        _theirs_bounds(second)
        _theirs_nonfinite(logits)

    return _compared("oob 64, oob 64, nan + inf [8, 128256]", _graph(ours, 100), _graph(theirs, 100), rounds, None)


def _gigabyte(dtype: torch.dtype, rounds: int, bound: Bound | None) -> Row:
    """Eager: one launch reads the lot, so the host does not matter."""
    tensor = torch.zeros(GIGABYTE, dtype=torch.int8, device="cuda").view(dtype)
    seconds = _samples([lambda: maybe_detect_nonfinite(tensor, "bench.gigabyte")], rounds, repeats=4)
    rates = [GIGABYTE / sample / 1e12 for (sample,) in seconds]
    return _alone(f"nan + inf, 1 GiB of {str(dtype).removeprefix('torch.')}", "TB/s", rates, bound)


def _on_the_host(rounds: int) -> Row:
    """What making an eager probe takes of the host's time."""
    ids = torch.randint(0, VOCAB, (512,), device="cuda")
    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(100):
            maybe_detect_oob(ids, 0, VOCAB, "bench.host")
        taken.append((time.perf_counter() - began) / 100 * 1e6)
    torch.cuda.synchronize()
    return _alone("eager oob, 512 int64: the host's time", "us", taken, None)


@triton.jit
def _almost_nothing(out, flag):  # type: ignore[no-untyped-def]
    if flag > 0:
        tl.store(out, 1)


def _empty(rounds: int) -> Row:
    """The least that a launch in a graph takes."""
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    graph = _graph(lambda: _almost_nothing[(1,)](out, 0), 200)
    taken = [sample * 1e6 for (sample,) in _samples([graph], rounds)]
    return _alone("an almost empty kernel", "us", taken, None)


def _graph(probe: Probe, repeats: int) -> Probe:
    """A replay of a graph that holds the probe ``repeats`` times, made to be timed by ``_samples``."""
    make: Any = torch.cuda.Stream
    stream = make()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            probe()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            probe()
    return _Replay(graph, repeats)


class _Replay:
    """Calls count for as many as the graph holds."""

    def __init__(self, graph: torch.cuda.CUDAGraph, repeats: int) -> None:
        self._graph = graph
        self.repeats = repeats

    def __call__(self) -> None:
        self._graph.replay()


def _samples(probes: Sequence[Probe], rounds: int, repeats: int = 1) -> list[list[float]]:
    """Seconds of one probe, for each of ``probes`` in turn, in every round but the first few."""
    event: Any = torch.cuda.Event
    samples = []
    for _ in range(rounds + 5):
        sample = []
        for probe in probes:
            start, stop = event(enable_timing=True), event(enable_timing=True)
            start.record()
            for _ in range(repeats):
                probe()
            stop.record()
            stop.synchronize()
            sample.append(start.elapsed_time(stop) / 1e3 / repeats / getattr(probe, "repeats", 1))
        samples.append(sample)
    return samples[5:]


def _compared(what: str, ours: Probe, theirs: Probe, rounds: int, bound: Bound | None) -> Row:
    samples = _samples([ours, theirs], rounds)
    left, right = ([sample[side] * 1e6 for sample in samples] for side in (0, 1))
    ratio = _quartiles([b / a for a, b in zip(left, right, strict=True)])
    return Row(what, "us", *_quartiles(left), *_quartiles(right), *ratio, bound)


def _alone(what: str, unit: str, values: Sequence[float], bound: Bound | None) -> Row:
    return Row(what, unit, *_quartiles(values), bound=bound)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the quartiles below and above it."""
    below, median, above = statistics.quantiles(values, n=4)
    return median, below, above


def show(found: Sequence[Row]) -> Table:
    """The table of what was measured."""
    versions = f"torch {torch.__version__}, triton {triton.__version__}"
    table = Table(title=f"Probes on {torch.cuda.get_device_name()}, {versions}")
    for column in ("probe", "ours", "the expressions", "ratio", "bound", ""):
        table.add_column(column)
    for row in found:
        ratio = "" if row.ratio is None else f"{row.ratio:.1f} ({row.ratio_low:.1f} to {row.ratio_high:.1f})"
        table.add_row(
            row.what,
            f"{row.ours:.2f} ({row.ours_low:.2f} to {row.ours_high:.2f}) {row.unit}",
            "" if row.theirs is None else f"{row.theirs:.1f} ({row.theirs_low:.1f} to {row.theirs_high:.1f})",
            ratio,
            str(row.bound or ""),
            "" if row.bound is None else "met" if row.bound.met(row.bounded) else "MISSED",
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for probes.json")
    parser.add_argument("--rounds", type=int, default=40)
    add_flag(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = rows(options.rounds)
    (options.out / "probes.json").write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")
    Console(width=150).print(show(found))
    return verdict(((row.what, row.bounded, row.bound) for row in found), no_bounds=options.no_bounds)


if __name__ == "__main__":
    sys.exit(main())
