"""Measure what probes and oracles cost a step of a released SGLang that is built in a worker, on this machine's GPU
with its own kernels and CUDA graphs. On a CPU ``benchmarks/looking_cost.py`` compares whole trials.

``python benchmarks/gpu/costs.py OUT [--target sglang] [--batch 1] [--turns 2]`` writes a target of Llama 3 8B's size
and its EAGLE head, random in bf16, and serves ``--batch`` long requests with them, each kind of arm in a process of its
own, in turns: alone, with every probe in record mode, with all oracles, with both. It prints a table of ratios and
writes ``costs.json`` to OUT.

A step is from the begin of one ``advance`` to that of the next, so what looks between two is in it: the mean of a run,
without the first ten.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from specdebug.campaign.loops.replay import Choices, plan
from specdebug.campaign.preload import PRELOAD
from specdebug.scenario.grammar import OracleSpec
from specdebug.scenario.library import Library
from specdebug.targets.settings import parse_target
from specdebug.workers.job import Job, WorkerEnd
from specdebug.workers.pool import WorkerPool

MODES = {
    "chain": {"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4},
    "tree": {"num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 8},
}
CONTEXT, PROMPT = 2048, 64
NO_PROBES: dict[str, Any] = {"probes": []}
NO_ORACLES: dict[str, Any] = {"oracles": OracleSpec.none().to_dict()}
KINDS: dict[str, dict[str, Any]] = {
    "alone": {**NO_PROBES, **NO_ORACLES},
    "probes": {"mode": "record", **NO_ORACLES},
    "oracles": NO_PROBES,
    "both": {"mode": "record"},
}


class Heard:
    """Keeps what a worker tells: the seconds of its steps, or what went wrong."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.trouble = ""

    def started(self, job: Job) -> None: ...

    def waiting(self) -> None: ...

    def event(self, job: Job, event: dict[str, Any]) -> None:
        if event["event"] == "steps":
            self.seconds = event["seconds"]
        elif event["event"] in ("violation", "error", "failed"):
            self.trouble = json.dumps(event)[:400]

    def ended(self, job: Job, end: WorkerEnd) -> None:
        if not self.seconds:
            self.trouble = self.trouble or end.log[-2000:]


def scenario_of(options: Mapping[str, Any], batch: int, tokens: int, target: str) -> dict[str, Any]:
    """A scenario that serves long requests, with an arm of each kind."""
    return {
        "name": "costs",
        "description": "long requests, looked at more and less",
        "engine": dict(options),
        "target": target,
        "limits": {"timeout_s": 560, "memory_mb": 60000},
        "workload": [
            {
                "id": "long",
                "requests": batch,
                "prompt": {"corpus": "stdlib", "tokens": PROMPT},
                "max_new_tokens": tokens,
            }
        ],
        "arms": KINDS,
    }


def options_of(mode: str, batch: int, folder: Path) -> dict[str, Any]:
    """A scenario's engine."""
    return {
        "device": "cuda",
        "dtype": "bfloat16",
        "model": str(folder / "target"),
        "attention_backend": "triton",
        "context_length": CONTEXT,
        "max_running_requests": batch,
        "radix_cache": False,
        "speculative": {"algorithm": "EAGLE", "draft_model": str(folder / "eagle"), **MODES[mode]},
        "cuda_graph": {"max_bs": batch, "capture_bs": [batch]},
        "memory": {"num_slots": 8192},
    }


def measure(file: Path, kinds: tuple[str, ...], turns: int) -> dict[str, list[float]]:
    """Seconds of a step of each kind, a run's mean each turn. Raises SystemExit where an arm took no step."""
    library = Library()
    scenario = library.scenario(str(file))
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    with WorkerPool(jobs=1, preload=PRELOAD) as pool:
        for _ in range(turns):
            for run in plan(scenario, Choices(arms=kinds), library):
                job = run.job_of("timed_steps:timed", workload=run.job(library).payload["workload"])
                assert job.home is not None  # a released engine has one
                home = replace(job.home, path=(*job.home.path, str(Path(__file__).parent)))
                heard = Heard()
                pool.run([replace(job, home=home)], heard)
                if not heard.seconds:
                    sys.exit(f"{run.arm} took no step: {heard.trouble}")
                found[run.arm].append(statistics.mean(heard.seconds))
    return found


def show(found: Mapping[str, Mapping[str, list[float]]]) -> None:
    table = Table(title="a step beside SGLang alone (each turn beside its own)")
    for column in ("", "ms alone", *list(next(iter(found.values())))[1:]):
        table.add_column(column, justify="right")
    for mode, kinds in found.items():
        alone = kinds["alone"]
        ratios = [
            statistics.median(own / base for own, base in zip(times, alone, strict=True))
            for kind, times in kinds.items()
            if kind != "alone"
        ]
        table.add_row(mode, f"{1e3 * statistics.median(alone):.2f}", *(f"{each:.3f}" for each in ratios))
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="sglang")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=264, help="of each request")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    options = parser.parse_args()
    parse_target(options.target)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="specdebug-costs-") as made:
        folder = Path(made)
        write_large(folder)
        for mode in options.modes:
            file = Path(made) / f"{mode}.yaml"
            engine = options_of(mode, options.batch, folder)
            file.write_text(yaml.safe_dump(scenario_of(engine, options.batch, options.tokens, options.target)))
            found[mode] = measure(file, ("alone", *(kind for kind in options.kinds if kind != "alone")), options.turns)
            (out / "costs.json").write_text(json.dumps({"batch": options.batch, "s": found}, indent=1) + "\n")
    show(found)


def write_large(folder: Path) -> None:
    """Write the target and its head, in a process that leaves the GPU free."""
    import torch
    from against_sglang import SHAPES
    from saved import make_saved

    make_saved(folder, SHAPES["8b"], CONTEXT + 64)
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
