"""What a replay costs cold, what an arm adds, and how much memory a worker takes.

``python benchmarks/replay_cost.py [--rounds N]`` runs ``specdebug replay --json`` in fresh processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

SCENARIO = "cache_hit"
COLD_LIMIT_S, ARM_LIMIT_S, RSS_LIMIT_MB = 8.0, 0.5, 1024.0


def replay(*extra: str) -> tuple[dict[str, Any], float]:
    """The JSON document of one cold replay and its wall time in seconds, interpreter start included."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "specdebug", "replay", SCENARIO, "--json", *extra]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - began
    document: dict[str, Any] = json.loads(done.stdout)
    return document, wall


def arm_overhead(document: dict[str, Any]) -> list[float]:
    """Seconds of each arm that its own stages (revert, build, run, cold) do not account for."""
    overheads = []
    for arm in document["arms"]:
        metrics = arm["metrics"]
        overheads.append(metrics["wall_s"] - sum(metrics["stages_s"].values()))
    return overheads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    walls, overheads, peaks = [], [], []
    for _ in range(rounds):
        document, wall = replay("--jobs", "2")
        walls.append(wall)
        overheads += arm_overhead(document)
        peaks += [arm["metrics"]["peak_rss_mb"] for arm in document["arms"]]
    table = Table(title=f"replay {SCENARIO}, all arms, {rounds} cold runs")
    for column in ("what", "median", "worst", "asked"):
        table.add_column(column)
    table.add_row(
        "cold wall time, s", f"{statistics.median(walls):.2f}", f"{max(walls):.2f}", f"at most {COLD_LIMIT_S}"
    )
    table.add_row(
        "an arm over its own stages, s",
        f"{statistics.median(overheads):.2f}",
        f"{max(overheads):.2f}",
        f"at most {ARM_LIMIT_S}",
    )
    table.add_row(
        "peak resident memory of a worker, MB",
        f"{statistics.median(peaks):.0f}",
        f"{max(peaks):.0f}",
        f"at most {RSS_LIMIT_MB:.0f}",
    )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
