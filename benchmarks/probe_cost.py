"""What a probe costs on this CPU: off (the promise is at most 100 ns a call) and live on clean tensors.

Run alone, ``python benchmarks/probe_cost.py`` prints the table; ``measure`` gives the numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from specdebug import async_probe
from specdebug.async_probe import (
    maybe_detect_inf,
    maybe_detect_nan,
    maybe_detect_oob,
    maybe_detect_page_aligned,
)

OFF_BUDGET_NS = 100.0

LOGITS = torch.randn(10, 2048)
IDS = torch.randint(0, 2048, (60,))
PAGES = torch.arange(60) * 16


def _nan(calls: range) -> None:
    for _ in calls:
        maybe_detect_nan(LOGITS, "bench.nan")


def _inf(calls: range) -> None:
    for _ in calls:
        maybe_detect_inf(LOGITS, "bench.inf")


def _oob(calls: range) -> None:
    for _ in calls:
        maybe_detect_oob(IDS, 0, 2048, "bench.oob")


def _page_aligned(calls: range) -> None:
    for _ in calls:
        maybe_detect_page_aligned(PAGES, 16, "bench.page_aligned")


def _nothing(calls: range) -> None:
    for _ in calls:
        pass


PROBES: dict[str, Callable[[range], None]] = {
    "nan, 10 x 2048 float32": _nan,
    "inf, 10 x 2048 float32": _inf,
    "oob, 60 int64": _oob,
    "page_aligned, 60 int64": _page_aligned,
}


def measure() -> dict[str, tuple[float, float]]:
    """For each probe, nanoseconds a call: off, and recording a clean tensor. Leaves the probes off."""
    rows = {}
    try:
        for name, loop in PROBES.items():
            async_probe.configure("off")
            off = _nanoseconds(loop, 200_000)
            async_probe.configure("record")
            rows[name] = (off, _nanoseconds(loop, 2_000))
    finally:
        async_probe.configure("off")
    return rows


def _nanoseconds(loop: Callable[[range], None], calls: int, rounds: int = 7) -> float:
    """Best of several rounds, less the cost of the loop itself."""
    return max(_best(loop, calls, rounds) - _best(_nothing, calls, rounds), 0.0)


def _best(loop: Callable[[range], None], calls: int, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        loop(range(calls))
        best = min(best, (time.perf_counter_ns() - begin) / calls)
    return best


def main() -> None:
    print(f"{'probe':<26}{'off':>10}{'recording':>14}   (ns a call; off at most {OFF_BUDGET_NS:.0f})")
    for name, (off, live) in measure().items():
        print(f"{name:<26}{off:>10.0f}{live:>14.0f}")


if __name__ == "__main__":
    main()
