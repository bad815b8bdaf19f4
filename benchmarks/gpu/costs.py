"""Measure what probes, recording and oracles cost a decode step of SGLang on this machine's GPU, CUDA graphs on.

``python benchmarks/gpu/costs.py OUT [--batch 1]`` writes a target of Llama 3 8B's size and its EAGLE head, random in
bf16, and starts SGLang on them several times, side by side, those that are not timed asleep: as it is, with our plugin
and nothing asked of it, with every probe in record mode, recording every tensor for ``diverge``, and looked into by
oracles. They are timed in turns. It prints a table of ratios and writes ``costs.json`` to OUT.

A step is as in ``against_sglang.py``: (seconds of a long output less those of a short one) / verifies between.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from specdebug.base.abilities import INSIDE
from specdebug.scenario.library import Library
from specdebug.scenario.packs import rules
from specdebug.targets.base import OverThere
from specdebug.targets.registry import find_target
from specdebug.targets.settings import parse_target

sys.path.insert(0, str(Path(__file__).parent))
from against_sglang import CONTEXT, PROMPT, SHAPES, SHORT, Sglang
from saved import make_saved

LONG, TURNS = 264, 5
MODES = {"chain": {"num_steps": 3, "eagle_topk": 1}, "tree": {"num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 8}}
RELEASE = "sglang"
PLUGIN = "SPECDEBUG_INSIDE"


def options_of(folder: Path, mode: str, backend: str, batch: int) -> dict[str, Any]:
    """A scenario's engine."""
    return {
        "device": "cuda",
        "dtype": "bfloat16",
        "model": str(folder / "target"),
        "attention_backend": backend,
        "context_length": CONTEXT,
        "max_running_requests": batch,
        "radix_cache": False,
        "speculative": {"algorithm": "EAGLE", "draft_model": str(folder / "eagle"), **MODES[mode]},
        "cuda_graph": {"max_bs": batch, "capture_bs": [batch]},
        "memory": {"num_slots": 8192},
    }


def kinds(out: Path) -> dict[str, OverThere]:
    """Return what each server is asked to do inside."""
    packs = Library().packs(("default",))
    return {
        "plugin": OverThere(),
        "probes": OverThere(rules=rules(packs, "record")),
        "recording": OverThere(tape=str(out / "tape")),
        "oracles": OverThere(shows=tuple(sorted(INSIDE))),
    }


def started(options: Mapping[str, Any], out: Path, mode: str) -> dict[str, Sglang]:
    """The servers, each with its words; ``plain`` has no plugin."""
    target: Any = find_target(
        parse_target(f"{{engine: {RELEASE}, arguments: [--sleep-on-idle, --mem-fraction-static, '0.9']}}")
    )
    servers = {}
    for name, there in {"plain": OverThere(), **kinds(out)}.items():
        command = target.command(options, 0, there)
        env = {**command.env, "SPECDEBUG_SERVER_LOG": str(out / f"{mode}-{name}")}
        if name == "plain":
            del env[PLUGIN]
        python, *rest = command.words
        words = rest[rest.index("{port}") + 1 :]
        servers[name] = Sglang(python, words, out / f"costs-{mode}-{name}.log", env)
    return servers


def measure(options: Mapping[str, Any], out: Path, mode: str, batch: int) -> dict[str, list[float]]:
    """Milliseconds of a step of each server, turn by turn."""
    vocab = SHAPES["8b"].vocab_size
    prompts = torch.randint(3, vocab, (batch, PROMPT), generator=torch.Generator().manual_seed(0)).tolist()
    servers = started(options, out, mode)
    found: dict[str, list[float]] = {name: [] for name in servers}
    try:
        for server in servers.values():
            server.wait()
        for turn in range(TURNS + 1):
            for name, server in servers.items():
                (short, few), (long, many) = server.generate(prompts, SHORT), server.generate(prompts, LONG)
                if turn:
                    found[name].append(1e3 * (long - short) / (many - few))
    finally:
        for server in servers.values():
            server.end()
    return found


def show(found: Mapping[str, Mapping[str, list[float]]], batch: int) -> None:
    table = Table(
        title=f"a step at batch {batch}, beside SGLang as it is (median of {TURNS} turns, each beside its own)"
    )
    for column in ("", "ms", *next(iter(found.values()))):
        table.add_column(column, justify="right")
    for mode, servers in found.items():
        plain = servers["plain"]
        ratios = [
            statistics.median(own / base for own, base in zip(times, plain, strict=True)) for times in servers.values()
        ]
        table.add_row(mode, f"{statistics.median(plain):.2f}", *(f"{each:.3f}" for each in ratios))
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--backend", default="triton", help="SGLang's attention; Triton's has a graph for each stage")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    found = {}
    with tempfile.TemporaryDirectory(prefix="specdebug-costs-") as folder:
        make_saved(Path(folder), SHAPES["8b"], CONTEXT + 64)
        torch.cuda.empty_cache()
        for mode in options.modes:
            engine = options_of(Path(folder), mode, options.backend, options.batch)
            found[mode] = measure(engine, out, mode, options.batch)
            (out / "costs.json").write_text(json.dumps({"batch": options.batch, "ms": found}, indent=1) + "\n")
    show(found, options.batch)


if __name__ == "__main__":
    main()
