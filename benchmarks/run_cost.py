"""Measure the cost of ``specdebug run`` without reverts to a program: wall and processor time, in pairs that alternate.

``python benchmarks/run_cost.py [--pairs N] [--rounds N]`` runs a program of torch's alone and under the hook.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

PROGRAM = """\
import sys, torch
torch.manual_seed(0)
torch.set_num_threads(1)
weights = torch.randn(256, 256) / 16
rows = torch.randn(4, 256)
for _ in range(int(sys.argv[1])):
    rows = torch.tanh(rows @ weights)
"""
MOST_RATIO, MOST_S = 1.03, 0.2


def measured(words: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of a command with all that it starts."""
    began, before = time.perf_counter(), os.times()
    subprocess.run(words, check=True)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=400_000, help="of the program's loop: 5 seconds or so")
    asked = parser.parse_args()
    alone = [sys.executable, "-c", PROGRAM, str(asked.rounds)]
    hooked = [sys.executable, "-m", "specdebug", "run", "--", *alone]
    found: dict[str, list[tuple[float, float]]] = {"alone": [], "hooked": []}
    for pair in range(asked.pairs):
        ways = [("alone", alone), ("hooked", hooked)]
        for name, words in ways if pair % 2 == 0 else reversed(ways):
            found[name].append(measured(words))
    table = Table(title=f"specdebug run: medians of {asked.pairs} pairs")
    for column in ("seconds", "alone", "under the hook", "ratio of pairs", "difference of pairs"):
        table.add_column(column)
    for at, what in enumerate(("wall", "processor")):
        pairs = [(one[at], other[at]) for one, other in zip(found["alone"], found["hooked"], strict=True)]
        medians = [f"{statistics.median(values):.2f}" for values in zip(*pairs, strict=True)]
        ratio = statistics.median(other / one for one, other in pairs)
        more = statistics.median(other - one for one, other in pairs)
        table.add_row(what, *medians, f"{ratio:.3f} (at most {MOST_RATIO})", f"{more:.3f} (at most {MOST_S})")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
