"""Everything there is to check and time on a GPU, in one go, in under nine minutes on a bare machine.

``python benchmarks/gpu/suite.py OUT`` (or ``make gpu OUT=folder``) runs the stages below one after another, each in a
process of its own with a time limit, writes their logs and tables to the folder OUT and ends with one summary. Checks
run two at a time; what is timed has the machine to itself. A stage that fails does not keep the others from running;
the exit code is 1 when one did. The matrix over twenty seeds takes longer than all the rest and is run with ``--long``,
or by its name.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PYTHON = sys.executable
SPECDEBUG = (PYTHON, "-m", "specdebug")
PLANS = ("triton", "fa3", "flashinfer")
TAIL = 25
LANES = 2
"""Checks at a time: one alone leaves cores and device idle while its workers start."""
TOLD = ("determinism", "lossless", "probes", "decode")
"""Stages whose results are worth reading even when nothing is wrong."""


@dataclass(frozen=True)
class Stage:
    """One command; ``limit_s`` bounds it. A ``timed`` one runs alone, a ``long`` one only when asked for."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    timed: bool = False
    long: bool = False


@dataclass(frozen=True)
class Result:
    """How a stage ended: its exit status (None when it ran out of time), seconds, and the last line it printed."""

    stage: Stage
    status: int | None
    seconds: float
    last: str


def stages(out: Path, jobs: int) -> list[Stage]:
    """In the order they begin: checks that take long before those that do not, what times at either end."""
    verify = (*SPECDEBUG, "toggles", "verify", "--jobs", str(jobs), "--device", "cuda", "--backend")
    matrix = [Stage(f"matrix-{plan}", (*verify, plan), 120) for plan in PLANS]
    seeds = [Stage(f"seeds-{plan}", (*verify, plan, "--seeds", "20"), 540, long=True) for plan in PLANS]
    arms = (PYTHON, str(HERE / "scenarios.py"), str(out), "--device", "cuda", "--jobs", str(jobs))
    each_plan = [word for plan in PLANS for word in ("--backend", plan)]
    tests = (PYTHON, "-m", "pytest", "-q", "-n", str(jobs), "-m", "gpu", "tests")
    determinism = ("--device", "cuda", "--runs", "100", "--jobs", str(jobs), "topk_page_table")
    replay = (*SPECDEBUG, "replay", "topk_kv_indices", "--device", "cuda")
    return [
        Stage("doctor", (*SPECDEBUG, "doctor"), 60, timed=True),
        Stage("replay-first", replay, 120, timed=True),
        Stage("replay-cold", replay, 60, timed=True),
        Stage("tests", tests, 240),
        Stage("determinism", (PYTHON, "benchmarks/determinism.py", *determinism), 240),
        Stage("scenarios", (*arms, *each_plan, "--same-as-cpu"), 240),
        Stage("lossless", (PYTHON, str(HERE / "lossless.py"), str(out)), 150),
        Stage("scenarios-bf16", (*arms, "--dtype", "bfloat16"), 120),
        *matrix,
        *seeds,
        Stage("probes", (PYTHON, str(HERE / "probes.py"), str(out)), 120, timed=True),
        Stage("decode", (PYTHON, str(HERE / "decode.py"), str(out)), 240, timed=True),
    ]


def run(stage: Stage, out: Path) -> Result:
    """Run a stage with its output in ``OUT/<name>.log``."""
    log = out / f"{stage.name}.log"
    began = time.monotonic()
    with log.open("w") as file:
        print("$", *stage.command, file=file, flush=True)
        try:
            status: int | None = subprocess.run(
                stage.command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, timeout=stage.limit_s, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return Result(stage, status, time.monotonic() - began, lines[-1] if lines else "")


def run_all(chosen: Sequence[Stage], out: Path, console: Console) -> list[Result]:
    """Run them in order, checks two at a time, and say each as it ends."""
    results: list[Result] = []
    for timed, group in itertools.groupby(chosen, lambda stage: stage.timed):
        with ThreadPoolExecutor(1 if timed else LANES) as lanes:
            results += lanes.map(lambda stage: _run_and_say(stage, out, console), group)
    return results


def _run_and_say(stage: Stage, out: Path, console: Console) -> Result:
    result = run(stage, out)
    console.print(f"{stage.name}: {result.status} in {result.seconds:.0f} s")
    return result


def show(results: Sequence[Result], out: Path, console: Console) -> None:
    """The ends of the logs that hold tables, then one line a stage."""
    for result in results:
        log = out / f"{result.stage.name}.log"
        if result.status != 0 or result.stage.name in TOLD:
            console.rule(result.stage.name)
            tail = log.read_text(errors="replace").splitlines()[-TAIL:]
            console.print("\n".join(tail), markup=False, highlight=False)
    table = Table(title="stages")
    for column in ("stage", "", "seconds", "last line"):
        table.add_column(column)
    for result in results:
        ended = {0: "ok", None: "out of time"}.get(result.status, f"exit {result.status}")
        table.add_row(result.stage.name, ended, f"{result.seconds:.1f}", result.last[:100])
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for tables and logs")
    parser.add_argument("--only", nargs="+", help="names of the stages to run")
    parser.add_argument("--long", action="store_true", help="the stages, too, that take more than nine minutes")
    parser.add_argument("--jobs", type=int, default=min(8, (os.cpu_count() or 2) // 2))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console(width=130)
    known = stages(options.out, max(options.jobs, 1))
    unknown = set(options.only or ()) - {stage.name for stage in known}
    if unknown:
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(stage.name for stage in known)}")
    began = time.monotonic()
    chosen = [s for s in known if (s.name in options.only if options.only else options.long or not s.long)]
    results = run_all(chosen, options.out, console)
    show(results, options.out, console)
    console.print(f"{len(results)} stages in {time.monotonic() - began:.0f} s")
    summary = [{"stage": r.stage.name, "status": r.status, "seconds": r.seconds, "last": r.last} for r in results]
    (options.out / "suite.json").write_text(json.dumps(summary, indent=1) + "\n")
    return 0 if all(result.status == 0 for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
