"""The engine's texts are compared with Hugging Face transformers' over generated configurations of each worker.

``python -m benchmarks.lossless [--worker v1] [--plan fa3] [--dtype bfloat16] [--device cuda] [--count 150]``.
Each worker (``workers.py``) serves the shipped checkpoints in ``--count`` configurations a dtype, under each plan in
turn: ``draw.py`` says what is chosen, ``play.py`` what must hold after each step, ``judge.py`` when a greedy text may
differ from transformers'. On CUDA all of them capture graphs. ``--only N`` plays one configuration again and prints it.

Exit code 0 when nothing is wrong, 1 when something is, 125 when this machine lacks what it takes.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.lossless.draw import Configuration, Decks, Served, configuration
from benchmarks.lossless.judge import judge
from benchmarks.lossless.play import play
from benchmarks.lossless.report import render
from benchmarks.lossless.tally import Row
from benchmarks.lossless.workers import WORKERS, Targets
from specdebug import async_probe
from specdebug.base.attention_plans import SHIPPED
from specdebug.base.errors import CannotRunHere, SpecDebugError
from specdebug.base.trial import stream
from specdebug.cli.output import check_writable, show, write_file
from specdebug.engine.kernels.twin import interpret_on_cpu
from specdebug.run.oracles.lossless import TIE_MARGIN
from specdebug.workers.device import DeviceUnavailable, claim

PLANS = tuple(plan.name for plan in SHIPPED)


def configurations(served: Served, name: str, options: argparse.Namespace, dtype: str) -> Iterator[Configuration]:
    """Those of a worker: the same ones for every dtype, and under other plans but for the plan."""
    choose = Decks(stream(options.seed, "lossless", name))
    fixed: dict[str, Any] = {"device": options.device, "dtype": dtype}
    for number in range(options.count):
        made = configuration(choose, served, options.plan[number % len(options.plan)], **fixed)
        if options.device != "cpu":
            made.engine["cuda_graph"]["enabled"] = True
        yield made


class Comparison:
    """The run of a command: rows by worker, dtype and plan."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.rows: list[Row] = []
        self._options = options
        self._folder = folder
        self._targets = Targets(options.device)

    def compare(self, worker: str, dtype: str) -> None:
        """Play and judge the configurations of one worker."""
        checkpoint, drafts = WORKERS[worker]
        place = Path(tempfile.mkdtemp(dir=self._folder))
        served = self._targets.serve(checkpoint, drafts(place))
        rows = {plan: Row(worker, plan, self._executor(plan, dtype), dtype) for plan in self._options.plan}
        for number, made in enumerate(configurations(served, worker, self._options, dtype)):
            if self._options.only in (None, number):
                row = rows[made.engine["attention_backend"]]
                began = time.perf_counter()
                self.take(row, number, made, checkpoint)
                row.seconds += time.perf_counter() - began
                if self._options.only is not None:
                    print(json.dumps({"engine": made.engine, "asks": [vars(ask) for ask in made.asks]}))
        self.rows += rows.values()

    def _executor(self, plan: str, dtype: str) -> str:
        executor = executor_on(self._options.device, plan, dtype)
        return f"{executor}, Triton kernels interpreted" if self._options.interpret else executor

    def take(self, row: Row, number: int, made: Configuration, checkpoint: str) -> None:
        """Play one configuration and have its row say what came of it."""
        try:
            played = play(made)
        except Exception as error:  # a sound engine raises nothing, so that is a finding like another
            row.wrong.append(f"{number}: {type(error).__name__}: {error}")
            return
        theirs, exact = (self._targets.model(checkpoint, dtype) for dtype in (row.dtype, "float32"))
        judged = {
            which: judge(ask, played.requests[which], row.dtype, theirs, exact)
            for which, ask in enumerate(made.asks)
            if ask.temperature == 0 and played.requests and played.requests[which].output_ids
        }
        row.add(number, made, played, judged)
        if self._options.device != "cpu":
            gc.collect()  # an engine holds graphs in cycles; the next one needs their memory


def executor_on(device: str, plan: str, dtype: str) -> str:
    """Who executes a plan there. Raises CannotRunHere where there is no such device, MachineFailed if it is gone."""
    try:
        executor: str = claim(device, plan, dtype, "lossless")["executor"]
    except DeviceUnavailable as error:
        raise CannotRunHere(str(error)) from error
    return executor


def prepare(interpret: bool) -> None:
    """Probes record, float32 is not TF32. Raises CannotRunHere without transformers, or Triton to ``interpret``."""
    if interpret:
        interpret_on_cpu()
    if importlib.util.find_spec("transformers") is None:
        raise CannotRunHere("transformers is what the engine is compared with; pip install transformers")
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    async_probe.configure("record")


def arguments_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; what was not given is all there is."""
    parser = argparse.ArgumentParser("python -m benchmarks.lossless", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--worker", action="append", choices=WORKERS)
    parser.add_argument("--plan", action="append", choices=PLANS)
    parser.add_argument("--dtype", action="append", choices=sorted(TIE_MARGIN))
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--interpret", action="store_true", help="run our Triton kernels on the CPU, interpreted")
    parser.add_argument("--count", type=_positive, default=150, help="configurations of each worker in each dtype")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="N", help="play configuration N alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    options = parser.parse_args(arguments)
    if options.only is not None and not 0 <= options.only < options.count:
        parser.error(f"--only must be one of the {options.count} configurations, 0 to {options.count - 1}")
    if options.interpret and options.device != "cpu":
        parser.error("--interpret is for the CPU; a GPU runs the kernels themselves")
    options.worker = options.worker or list(WORKERS)
    options.plan = options.plan or list(PLANS)
    options.dtype = options.dtype or ["float32", "bfloat16"]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = arguments_of(arguments)
    try:
        if options.json is not None:
            check_writable(options.json)
        executor_on(options.device, options.plan[0], options.dtype[0])
        prepare(options.interpret)
        with tempfile.TemporaryDirectory() as folder:
            comparison = Comparison(options, Path(folder))
            for worker in options.worker:
                for dtype in options.dtype:
                    comparison.compare(worker, dtype)
                    print(f"{worker} in {dtype}: played", file=sys.stderr, flush=True)
        rows = comparison.rows
        if options.json is not None:
            write_file(options.json, json.dumps([row.to_dict() for row in rows], indent=1) + "\n")
        title = f"against transformers {importlib.metadata.version('transformers')} on {options.device}"
        show(render(rows, title), fold=False)
    except SpecDebugError as error:
        print(f"lossless: {error}", file=sys.stderr)
        return error.exit_code
    return 1 if any(row.wrong for row in rows) else 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
