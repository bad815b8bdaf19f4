"""Our engine's step beside that of an installed SGLang on the same GPU, weights and prompts.

``python benchmarks/gpu/against_sglang.py OUT [--backend fa3] [--shape 8b]`` writes a target of Llama 3 8B's size (heads
of 64, random bf16) and its EAGLE head, starts SGLang on them without drafts, with a chain and with a tree (side by
side; those that are not timed sleep), times each, ends them, and times our engine on the same weights. It prints a
table and writes ``against_sglang.json`` to OUT. SGLang is the newest that ``specdebug engines`` knows for CUDA.

A step is (seconds of 104 tokens less seconds of 8) / (verifies of 104 less verifies of 8), of a whole batch, greedy, no
radix cache, CUDA graphs on: prefill and HTTP are in both and cancel out. SGLang answers over HTTP and detokenizes, ours
runs in this process; otherwise SGLang has its defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.engine.textbook.engine import Models
from specdebug.targets.installs.release import parse_release
from specdebug.targets.installs.store import find_installed, store_folder
from specdebug.targets.launch.process import free_port

sys.path.insert(0, str(Path(__file__).parent))
from models import LLAMA_8B
from saved import make_saved

SHAPES = {
    "8b": replace(LLAMA_8B, num_heads=64, head_dim=64, rope_scaling=None, max_position_embeddings=8192),
    "small": replace(
        LLAMA_8B, hidden_size=256, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=64, intermediate_size=512,
        vocab_size=2048, rope_scaling=None, max_position_embeddings=8192,
    ),
}  # fmt: skip
MODES: dict[str, tuple[int, int, int] | None] = {"plain": None, "chain": (3, 1, 4), "tree": (3, 4, 8)}
"""Steps, branches and nodes."""
BATCHES = (1, 8, 32)
SHORT, LONG, PROMPT, REPEATS = 8, 104, 512, 3
CONTEXT, SLOTS = 2048, 40_000
READY_S = 240.0

Generate = Callable[[Sequence[Sequence[int]], int], tuple[float, int]]
"""Prompts and new tokens to seconds, and the most verifies that one of them took."""


class Sglang:
    """A server of SGLang in a process group of its own. ``env``: its variables; else ours without our packages."""

    def __init__(self, python: str, words: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        command = [python, "-m", "sglang.launch_server", "--port", self._url.rpartition(":")[2], *words]
        env = env or {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with log.open("w") as sink:
            self._process = subprocess.Popen(command, env=env, stdout=sink, stderr=sink, start_new_session=True)
        self._log = log

    def wait(self) -> None:
        """Until it answers. Raises RuntimeError."""
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self._url}/model_info", timeout=3):
                    return
            except OSError:
                time.sleep(0.5)
        raise RuntimeError(f"SGLang is not ready; see {self._log}")

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> tuple[float, int]:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = json.dumps({"input_ids": prompts, "sampling_params": sampling}).encode()
        asked = urllib.request.Request(f"{self._url}/generate", body, {"Content-Type": "application/json"})
        began = time.perf_counter()
        with urllib.request.urlopen(asked, timeout=120) as answer:
            raw = answer.read()
        seconds = time.perf_counter() - began
        told = [each["meta_info"] for each in json.loads(raw)]
        assert all(each["completion_tokens"] == tokens for each in told)
        return seconds, max(each.get("spec_verify_ct") or tokens - 1 for each in told)

    def end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Ours:
    """Our engine in this process."""

    def __init__(self, models: Models, mode: str, backend: str) -> None:
        spec = MODES[mode]
        drafted = spec and dict(zip(("num_steps", "eagle_topk", "num_draft_tokens"), spec, strict=True))
        options = {
            "device": "cuda",
            "dtype": "bfloat16",
            "attention_backend": backend,
            "context_length": CONTEXT,
            "max_running_requests": max(BATCHES),
            "radix_cache": False,
            "speculative": drafted and {"algorithm": "EAGLE", **drafted},
            "cuda_graph": {"max_bs": max(BATCHES), "capture_bs": list(BATCHES)},
            "memory": {"num_slots": SLOTS, "fill": "zeros"},
        }
        self._engine = Engine(EngineConfig.from_dict(options), models if spec else Models(models.target, None))
        self._made = 0

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> tuple[float, int]:
        torch.cuda.synchronize()
        began = time.perf_counter()
        rids = [f"r{self._made + number}" for number in range(len(prompts))]
        self._made += len(prompts)
        for rid, prompt in zip(rids, prompts, strict=True):
            self._engine.add_request(rid, list(prompt), SamplingParams(max_new_tokens=tokens))
        while self._engine.has_work:
            self._engine.step()
        seconds = time.perf_counter() - began
        done = [self._engine.requests[rid] for rid in rids]
        assert all(len(each.output_ids) == tokens for each in done)
        verifies = max(len(each.accept_lengths) or tokens - 1 for each in done)
        self._engine.forget_finished()
        return seconds, verifies


def step_ms(generate: Generate, prompts: Sequence[Sequence[int]]) -> list[float]:
    """Milliseconds of a step, once for each repeat after one that is not counted."""
    found = []
    for _ in range(REPEATS + 1):
        (short, few), (long, many) = generate(prompts, SHORT), generate(prompts, LONG)
        found.append(1e3 * (long - short) / (many - few))
    return found[1:]


def words_of(mode: str, folder: Path, backend: str) -> list[str]:
    """SGLang's flags."""
    words = [
        "--model-path", str(folder / "target"), "--host", "127.0.0.1", "--dtype", "bfloat16", "--page-size", "1",
        "--attention-backend", backend, "--context-length", str(CONTEXT), "--max-running-requests", str(max(BATCHES)),
        "--cuda-graph-bs", *map(str, BATCHES), "--max-total-tokens", str(SLOTS), "--mem-fraction-static", "0.9",
        "--chunked-prefill-size", "16384", "--disable-radix-cache", "--disable-piecewise-cuda-graph",
        "--grammar-backend", "none", "--sampling-backend", "pytorch", "--skip-server-warmup", "--sleep-on-idle",
    ]  # fmt: skip
    if (spec := MODES[mode]) is not None:
        words += [
            "--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", str(folder / "eagle"),
            "--speculative-num-steps", str(spec[0]), "--speculative-eagle-topk", str(spec[1]),
            "--speculative-num-draft-tokens", str(spec[2]),
        ]  # fmt: skip
    return words


def measure(folder: Path, out: Path, python: str, shape: str, backend: str, plan: str) -> list[dict[str, Any]]:
    """Every mode and batch on both."""
    models = make_saved(folder, SHAPES[shape], CONTEXT + 64)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, SHAPES[shape].vocab_size, (max(BATCHES), PROMPT), generator=generator).tolist()
    servers = {mode: Sglang(python, words_of(mode, folder, backend), out / f"sglang-{mode}.log") for mode in MODES}
    theirs: dict[tuple[str, int], list[float]] = {}
    try:
        for server in servers.values():
            server.wait()
        for mode, server in servers.items():
            for batch in BATCHES:
                theirs[mode, batch] = step_ms(server.generate, prompts[:batch])
            server.end()
    finally:
        for server in servers.values():
            server.end()
    rows = []
    for mode in MODES:
        ours = Ours(models, mode, plan)
        for batch in BATCHES:
            own = step_ms(ours.generate, prompts[:batch])
            rows.append({"mode": mode, "batch": batch, "ours_ms": own, "sglang_ms": theirs[mode, batch]})
        del ours
        torch.cuda.empty_cache()
    return rows


def show(rows: Sequence[dict[str, Any]], release: str) -> None:
    table = Table(title=f"a step, ms (median of {REPEATS}; widest spread beside it)")
    for column in ("", "batch", release, "ours", "ours / SGLang"):
        table.add_column(column, justify="right")
    for row in rows:
        cells, middles = [], []
        for name in ("sglang_ms", "ours_ms"):
            middles.append(statistics.median(row[name]))
            cells.append(f"{middles[-1]:.2f} ({max(row[name]) - min(row[name]):.2f})")
        table.add_row(row["mode"], str(row["batch"]), *cells, f"{middles[1] / middles[0]:.2f}")
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--backend", default="fa3", help="SGLang's attention")
    parser.add_argument("--plan", default="triton", help="our attention plan")
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    here = find_installed(store_folder(None), parse_release("sglang"), "cuda")
    with tempfile.TemporaryDirectory(prefix="specdebug-against-") as folder:
        rows = measure(Path(folder), options.out, here.python, options.shape, options.backend, options.plan)
    (options.out / "against_sglang.json").write_text(json.dumps(rows, indent=1) + "\n")
    show(rows, str(here.release))


if __name__ == "__main__":
    main()
