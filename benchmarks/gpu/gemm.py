"""Products of a few rows with the weights of an 8B model: cuBLAS in both layouts against our own kernel.

Each is captured in a CUDA graph that goes through more copies of the weights than the L2 cache holds; the graphs of
one shape are replayed in turn and the medians printed, in microseconds and GB/s of weights.
``python benchmarks/gpu/gemm.py [--rows 1 6 8 64] [--rounds 30] [--out FOLDER]``
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import triton
from rich.console import Console
from rich.table import Table
from torch import Tensor

from specdebug.engine.kernels.triton.products import MAX_ROWS, TILES, skinny_gemm

DTYPE = torch.bfloat16
LAYERS = 32
LM_HEAD = "lm_head"
# inputs, outputs, and whether the layer adds the product to its residual
SHAPES = {
    "qkv": (4096, 6144, False),
    "output": (4096, 4096, True),
    "gate_up": (4096, 28672, False),
    "down": (14336, 4096, True),
    LM_HEAD: (4096, 128256, False),
}
BYTES_UNDER_WAY = 1 << 30
MIN_LAUNCHES = 8
Product = Callable[[Tensor, Tensor, Tensor], Tensor]  # x [n, in], weight stored [out, in], base [n, out]


@dataclass(frozen=True)
class Row:
    """One variant on one shape: median microseconds of one product."""

    shape: str
    rows: int
    variant: str
    microseconds: float
    gigabytes_per_second: float


def _transposed(x: Tensor, weight: Tensor, base: Tensor) -> Tensor:
    return torch.mm(x, weight.t())


def _plain(x: Tensor, weight: Tensor, base: Tensor) -> Tensor:
    """The same bytes read as an [in, out] matrix: other numbers, the same work."""
    return torch.mm(x, weight.view(weight.shape[1], weight.shape[0]))


def _added(x: Tensor, weight: Tensor, base: Tensor) -> Tensor:
    return base.addmm_(x, weight.t())


def variants(rows: int, residual: bool) -> dict[str, Product]:
    """What is compared; where the engine adds to a residual, the ways to do that too."""
    chosen: dict[str, Product] = {"cublas [in, out]": _plain, "cublas [out, in]": _transposed}
    if residual:
        chosen["cublas [out, in] into"] = _added
    if rows <= MAX_ROWS:
        for name, tile in TILES.items():
            chosen[f"triton {name}"] = lambda x, weight, base, tile=tile: skinny_gemm(x, weight.t(), tile=tile)
            if residual:
                chosen[f"triton {name} into"] = lambda x, weight, base, tile=tile: skinny_gemm(
                    x, weight.t(), base=base, out=base, tile=tile
                )
    return chosen


def measure(shape: str, rows: int, rounds: int) -> list[Row]:
    """All variants of one shape, their graphs replayed in turn."""
    size_in, size_out, residual = SHAPES[shape]
    weight_bytes = size_in * size_out * DTYPE.itemsize
    copies = -(-BYTES_UNDER_WAY // weight_bytes)
    weights = torch.empty(copies, size_out, size_in, dtype=DTYPE, device="cuda").normal_(std=size_in**-0.5)
    x = torch.randn(rows, size_in, dtype=DTYPE, device="cuda")
    base = torch.zeros(rows, size_out, dtype=DTYPE, device="cuda")
    launches = max(copies, MIN_LAUNCHES)
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    for name, product in variants(rows, residual).items():
        if "in, out" not in name:
            _check(shape, name, product, x, weights[0])
        graph = torch.cuda.CUDAGraph()
        product(x, weights[0], base)  # compiles, and lets cuBLAS choose
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for index in range(launches):
                product(x, weights[index % copies], base)
        graphs[name] = graph
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            samples[name].append(_milliseconds(graph.replay) * 1e3 / launches)
    return [
        Row(shape, rows, name, median, weight_bytes / median / 1e3)
        for name, median in ((name, statistics.median(values)) for name, values in samples.items())
    ]


def _check(shape: str, name: str, product: Product, x: Tensor, weight: Tensor) -> None:
    """A variant that computes something else is not worth timing."""
    base = torch.zeros(x.shape[0], weight.shape[0], dtype=DTYPE, device="cuda")
    expected = x.float() @ weight.float().t()
    error = float((product(x, weight, base).float() - expected).abs().max())
    if error > 0.05:
        sys.exit(f"{shape}, {x.shape[0]} rows, {name}: off by {error}")


def _milliseconds(work: Callable[[], None]) -> float:
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def whole_step(found: list[Row], rows: int, keep: Callable[[str], bool]) -> float | None:
    """Milliseconds of all products of a step: 32 layers and the lm_head, each by the fastest variant kept."""
    total = 0.0
    for shape, (_, _, residual) in SHAPES.items():
        times = [
            row.microseconds
            for row in found
            if row.shape == shape
            and row.rows == rows
            and keep(row.variant)
            and row.variant.endswith("into") == residual
        ]
        if not times:
            return None
        total += min(times) * (1 if shape == LM_HEAD else LAYERS)
    return total / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 6, 8, 64])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, help="folder for gemm.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    console = Console(width=110)
    found: list[Row] = []
    for shape, (size_in, size_out, _) in SHAPES.items():
        table = Table(title=f"{shape}: [n, {size_in}] x [{size_in}, {size_out}]")
        for column in ("n", "variant", "µs", "GB/s"):
            table.add_column(column)
        for rows in options.rows:
            part = measure(shape, rows, options.rounds)
            found += part
            for row in sorted(part, key=lambda row: row.microseconds):
                table.add_row(str(rows), row.variant, f"{row.microseconds:.2f}", f"{row.gigabytes_per_second:.0f}")
        console.print(table)
    device = torch.cuda.get_device_name()
    table = Table(title=f"products of a whole step, {device}, torch {torch.__version__}, triton {triton.__version__}")
    for column in ("n", "cuBLAS ms", "Triton ms", "fastest of all, ms"):
        table.add_column(column)
    kinds: list[Callable[[str], bool]] = [
        lambda name: name.startswith("cublas [out, in]"),
        lambda name: name.startswith("triton"),
        lambda name: True,
    ]
    for rows in options.rows:
        totals = [whole_step(found, rows, keep) for keep in kinds]
        table.add_row(str(rows), *("" if total is None else f"{total:.3f}" for total in totals))
    console.print(table)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "gemm.json").write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
