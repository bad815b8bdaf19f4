"""Run sound engines for very long: nothing may be found, nothing may be left behind, and memory must stay flat.

``python -m benchmarks.soak [--steps 100000] [--jobs 2] [--seed 0] [--json FILE]``, or ``make soak`` for a million
steps. Ever new workloads are served, in the fixed state, with every probe recording, guard regions on and the pools
checked after each step; see ``life.py`` for whose lives are watched, ``draw.py`` for what they are asked and
``memory.py`` for what flat means. Every finding is a false alarm, told with the command that serves its engine's life
again (``--engine``), and in the JSON with its scenario.

Exit code 0 when nothing was found and memory is flat, 1 when not, 125 when too short to tell of memory, 130 after a
Ctrl-C, which shows what is known by then.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.determinism import shares
from benchmarks.soak.report import Progress, render
from benchmarks.soak.tally import Tally, WorkerTally
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.preload import PRELOAD
from specdebug.cli.output import check_writable, show, write_file
from specdebug.workers.job import Job, WorkerEnd
from specdebug.workers.pool import WorkerPool


class Listener:
    """Passes what workers tell to the tally, and lets progress be said."""

    def __init__(self, tally: Tally, progress: Progress) -> None:
        self._workers = {str(worker.number): worker for worker in tally.workers}
        self._progress = progress

    def started(self, job: Job) -> None:
        """Nothing to note."""

    def event(self, job: Job, event: dict[str, Any]) -> None:
        self._workers[job.name].fold(event)

    def ended(self, job: Job, end: WorkerEnd) -> None:
        self._workers[job.name].ended(end)

    def waiting(self) -> None:
        self._progress.look()


def soak(jobs: Sequence[Job], tally: Tally) -> None:
    """Run the workers to their ends, or to a Ctrl-C. Raises WorkerStartError."""
    began = time.monotonic()
    try:
        with WorkerPool(len(jobs), PRELOAD, ("benchmarks.soak.life:prepare", None)) as pool:
            pool.run(jobs, Listener(tally, Progress(sys.stderr, tally)))
    except KeyboardInterrupt:
        tally.interrupted = True
    tally.wall_s = time.monotonic() - began


def planned(options: argparse.Namespace) -> tuple[list[Job], Tally]:
    """The workers, one for each share of the steps, or the one that serves a single engine."""
    only = None
    parts = dict(enumerate(shares(options.steps, options.jobs)))
    if options.engine is not None:
        worker, only = options.engine
        parts = {worker: options.steps}
    jobs = [
        Job(
            str(worker),
            "benchmarks.soak.life:run",
            {"seed": options.seed, "worker": worker, "steps": steps, "engine": only},
            timeout_s=float("inf"),
        )
        for worker, steps in parts.items()
    ]
    return jobs, Tally(options.seed, options.steps, [WorkerTally(worker) for worker in parts], only is None)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--steps", type=_positive, default=100_000, help="decode steps, of all processes together")
    parser.add_argument("--jobs", type=_positive, default=2, help="processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there as well")
    parser.add_argument("--engine", type=_engine, metavar="W.N", help="serve the life of engine N of process W only")
    options = parser.parse_args(arguments)
    jobs, tally = planned(options)
    try:
        if options.json is not None:
            check_writable(options.json)
        soak(jobs, tally)
        if options.json is not None:
            write_file(options.json, json.dumps(tally.to_dict(), indent=1) + "\n")
        show(render(tally), fold=False)
    except SpecDebugError as error:
        print(f"soak: {error}", file=sys.stderr)
        return error.exit_code
    return tally.exit_code


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _engine(text: str) -> tuple[int, int]:
    if not re.fullmatch(r"\d+\.\d+", text):
        raise argparse.ArgumentTypeError(f"must be a process and an engine, such as 0.3; got {text!r}")
    worker, _, number = text.partition(".")
    return int(worker), int(number)


if __name__ == "__main__":
    sys.exit(main())
