"""Whether what the engine generates is what Hugging Face ``generate`` does, token by token, on the same device.

``python benchmarks/gpu/lossless.py OUT [--device cuda] [--dtype float32 --dtype bfloat16] [--plan ...] [--topk ...]``.
The greedy requests of some shipped scenarios go through the shipped target with its EAGLE head, graphs on, under every
plan; transformers' LlamaForCausalLM continues the same prompts, each alone and without a draft.

In float32 (TF32 off) the tokens must be equal. In half precision two sound implementations may part where two logits
are nearly equal, and the texts differ from there on. So the first difference of each request is a near-tie if the
float32 model tells the two tokens apart by no more than the dtype's rounding explains (``TIE_MARGIN``), and every token
of the engine's own text is judged by the float32 model given what precedes it. Exit code 1 when float32 differs, or
something in half precision is wider than its margin.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from specdebug.assets import checkpoint_path
from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.loops.compare import first_difference
from specdebug.run.oracles.lossless import TIE_MARGIN, judge_output
from specdebug.scenario.library import Library
from specdebug.verdict.outcome import Tie
from specdebug.workers.stack import executor_of, versions

MODEL = "tiny"
PLANS = ("triton", "fa3", "flashinfer")
PAGE_SIZES = {"triton": 1, "fa3": 16, "flashinfer": 1}
SCENARIOS = ("topk_kv_indices", "topk_page_table", "cache_hit", "graph_padding", "multiturn_cache_hit", "chunk_tail")


@dataclass(frozen=True)
class Ask:
    """One greedy request."""

    name: str
    prompt: tuple[int, ...]
    max_new_tokens: int


def greedy_requests(library: Library, scenarios: Sequence[str], most_tokens: int) -> list[Ask]:
    """The greedy requests of the scenarios that have a prompt of their own, each prompt once."""
    asks: dict[tuple[int, ...], Ask] = {}
    for name in scenarios:
        scenario = library.scenario(name)
        for request in library.workload(scenario, next(iter(scenario.arms)), scenario.seed).requests:
            if request.sampling.temperature == 0 and request.continues is None:
                length = min(request.sampling.max_new_tokens, most_tokens)
                asks.setdefault(request.new_ids, Ask(f"{name}/{request.rid}", request.new_ids, length))
    return list(asks.values())


class HuggingFace:
    """The target as transformers has it. ``attn_implementation`` eager: plain products, no TF32, no fused kernels."""

    def __init__(self, dtype: str, device: str) -> None:
        path = checkpoint_path(MODEL)
        kind = getattr(torch, dtype)
        import transformers

        model = transformers.LlamaForCausalLM.from_pretrained(path, dtype=kind, attn_implementation="eager")
        model.generation_config.eos_token_id = None  # the engine goes on after it, too
        self._model = model.to(device).eval()
        self._device = device

    @torch.inference_mode()
    def generate(self, ask: Ask) -> list[int]:
        """The continuation of one prompt, alone in its batch."""
        ids = torch.tensor([ask.prompt], device=self._device)
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=ask.max_new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        found: list[int] = out[0, len(ask.prompt) :].tolist()
        return found

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """float32 [V] after ``ids``."""
        found: torch.Tensor = self._model(torch.tensor([list(ids)], device=self._device)).logits[0, -1].float().cpu()
        return found

    @torch.inference_mode()
    def judge(self, ids: Sequence[int], start: int) -> tuple[list[int], list[float], list[float]]:
        """As ``DenseReference.judge``: choices, how far above the given tokens, and largest logits."""
        logits = self._model(torch.tensor([list(ids[:-1])], device=self._device)).logits[0, start - 1 :].float()
        best, choice = logits.max(-1)
        given = logits.gather(-1, torch.tensor(list(ids[start:]), device=self._device)[:, None])[:, 0]
        return choice.tolist(), (best - given).tolist(), logits.abs().amax(-1).tolist()

    def draft_kv(self, ids: Sequence[int], stop: int) -> Any:
        """Part of what a reference is; transformers has no draft."""
        raise NotImplementedError


@dataclass
class Row:
    """One configuration. ``parted``: first differences that are near-ties; ``ties``: all of the engine's own text;
    ``wrong``: what is neither."""

    plan: str
    executor: str
    dtype: str
    topk: int
    requests: int
    tokens: int
    accept_mean: float
    seconds: float
    parted: list[tuple[str, Tie]]
    ties: list[tuple[str, Tie]]
    wrong: list[str]


def serve(asks: Sequence[Ask], options: dict[str, Any]) -> tuple[list[list[int]], float]:
    """What the engine generates for each, and the mean accept length."""
    engine = Engine(EngineConfig.from_dict(options))
    requests = [
        engine.add_request(ask.name, list(ask.prompt), SamplingParams(max_new_tokens=ask.max_new_tokens))
        for ask in asks
    ]
    while engine.has_work:
        engine.step()
    lengths = [length for request in requests for length in request.accept_lengths]
    return [list(request.output_ids) for request in requests], sum(lengths) / max(len(lengths), 1)


def engine_options(plan: str, dtype: str, topk: int, device: str, longest: int) -> dict[str, Any]:
    """Up to four requests in a graph, prefilled in chunks while others decode; a fifth waits."""
    tree = {} if topk == 1 else {"num_draft_tokens": 8}
    return {
        "model": MODEL,
        "device": device,
        "dtype": dtype,
        "attention_backend": plan,
        "page_size": PAGE_SIZES[plan],
        "context_length": longest,
        "max_running_requests": 4,
        "chunked_prefill_size": 256,
        "speculative": {"algorithm": "EAGLE", "num_steps": 4, "eagle_topk": topk, **tree},
        "cuda_graph": {"enabled": True, "max_bs": 4, "capture_bs": [1, 2, 4]},
        "memory": {"num_slots": 16384, "fill": "garbage", "guards": True},
    }


def judge(
    asks: Sequence[Ask],
    outputs: Sequence[Sequence[int]],
    theirs: Sequence[Sequence[int]],
    row: Row,
    exact: HuggingFace,
) -> None:
    """Compare the outputs with transformers' and fill in what the row says of them."""
    margin = TIE_MARGIN[row.dtype]
    for ask, ours, expected in zip(asks, outputs, theirs, strict=True):
        position = first_difference(ours, expected)
        if position is not None and (row.dtype == "float32" or position >= min(len(ours), len(expected))):
            row.wrong.append(f"{ask.name}: differs from output {position} on: {list(ours)} for {list(expected)}")
            continue
        if position is not None:
            logits = exact.logits([*ask.prompt, *ours[:position]])
            apart = float((logits[ours[position]] - logits[expected[position]]).abs())
            tie = Tie(position, apart, margin * float(logits.abs().max()), ours[position], expected[position])
            row.parted.append((ask.name, tie))
            if tie.margin > tie.allowed:
                named = f"{tie.token} for {tie.preferred}, {apart:.3g} logits apart, {tie.allowed:.2g} allowed"
                row.wrong.append(f"{ask.name}: output {position} is {named}")
        if row.dtype == "float32":
            continue
        found = judge_output(exact, ask.prompt, ours, margin)
        row.ties += [(ask.name, tie) for tie in found.ties]
        row.wrong += [
            f"{ask.name}: output {at} is {found.gaps[at]:.3g} logits below the best, {found.allowed[at]:.2g} allowed"
            for at in found.wrong
        ]


def table(rows: Sequence[Row], device: str) -> Table:
    """One row a configuration."""
    shown = Table(
        title=f"engine against transformers {importlib.metadata.version('transformers')} on {device}, graphs on"
    )
    facts = ("plan", "by", "dtype", "topk", "tokens", "accept")
    for name in (*facts, "same text", "near-ties", "widest", "wrong", "s"):
        shown.add_column(name)
    for row in rows:
        widest = max((tie for _, tie in (*row.parted, *row.ties)), key=lambda tie: tie.used, default=None)
        different = len({name for name, _ in row.parted} | {line.partition(":")[0] for line in row.wrong})
        shown.add_row(
            row.plan,
            row.executor,
            row.dtype,
            str(row.topk),
            str(row.tokens),
            f"{row.accept_mean:.2f}",
            f"{row.requests - different} of {row.requests}",
            str(len(row.ties)),
            f"{widest.margin:.2g} of {widest.allowed:.2g}" if widest is not None else "",
            str(len(row.wrong)),
            f"{row.seconds:.1f}",
        )
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", action="append", choices=sorted(TIE_MARGIN))
    parser.add_argument("--plan", action="append", choices=PLANS)
    parser.add_argument("--topk", action="append", type=int)
    parser.add_argument("--scenario", action="append")
    parser.add_argument("--most-tokens", type=int, default=24, help="of each output")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    from transformers.utils import logging

    logging.disable_progress_bar()
    asks = greedy_requests(Library(), options.scenario or SCENARIOS, options.most_tokens)
    longest = max(len(ask.prompt) + ask.max_new_tokens for ask in asks) + 1
    exact = HuggingFace("float32", options.device)
    rows: list[Row] = []
    for dtype in options.dtype or ("float32", "bfloat16"):
        model = exact if dtype == "float32" else HuggingFace(dtype, options.device)
        began = time.perf_counter()
        theirs = [model.generate(ask) for ask in asks]
        print(f"transformers, {dtype}: {len(asks)} requests in {time.perf_counter() - began:.1f} s", flush=True)
        for plan in options.plan or PLANS:
            for topk in options.topk or (1, 4):
                began = time.perf_counter()
                outputs, accepted = serve(asks, engine_options(plan, dtype, topk, options.device, longest))
                gc.collect()  # an engine holds graphs in cycles; the next one needs their memory
                who = executor_of(plan, options.device, dtype, versions())
                seconds = time.perf_counter() - began
                tokens = sum(map(len, outputs))
                row = Row(plan, who, dtype, topk, len(asks), tokens, accepted, seconds, [], [], [])
                judge(asks, outputs, theirs, row, exact)
                rows.append(row)
                print(*row.wrong, sep="\n", end="\n" if row.wrong else "", flush=True)
    Console(width=150, highlight=False).print(table(rows, options.device))
    (options.out / "lossless.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    wrong = sum(len(row.wrong) for row in rows)
    ties = sum(len(row.ties) for row in rows)
    print(f"{len(rows)} configurations, {sum(row.tokens for row in rows)} tokens: {wrong} wrong, {ties} near-ties")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
