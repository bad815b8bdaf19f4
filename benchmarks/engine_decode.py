"""The engine against transformers ``generate`` and against itself, on the shipped checkpoints.

Every ratio comes from runs taken in turn (A B A B ...) in this process; the median and the range are printed.
``python benchmarks/engine_decode.py [--rounds N]``
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from specdebug.base import corpus
from specdebug.base.assets import checkpoint_path
from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.engine.model.tokenizer import TargetTokenizer
from specdebug.engine.textbook.speculative.accept import Acceptance, accept

PROMPT_TOKENS, NEW_TOKENS = 128, 96
EAGLE_SETTINGS = [("EAGLE", steps) for steps in (2, 3, 4, 5)] + [("EAGLE3", steps) for steps in (2, 3, 4)]


@dataclass(frozen=True)
class Ratio:
    """Median and range of paired ratios."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Ratio:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def prompts(count: int) -> list[list[int]]:
    """Held-out prompts, the same every time."""
    tokenizer = TargetTokenizer(checkpoint_path("tiny") / "tokenizer.json")
    ids = tokenizer.encode(corpus.heldout_text()[:400_000])
    stride = len(ids) // (count + 1)
    return [ids[i * stride : i * stride + PROMPT_TOKENS] for i in range(count)]


def engine(speculative: dict[str, Any] | None, **options: Any) -> Engine:
    return Engine(
        EngineConfig.from_dict(
            {
                "context_length": 512,
                "radix_cache": False,
                "speculative": speculative,
                "memory": {"num_slots": 8192, "fill": "zeros"},
                **options,
            }
        )
    )


def decode_rate(runner: Engine, batch: Sequence[Sequence[int]], tag: str) -> float:
    """Tokens a second over the whole batch, prefill included."""
    for i, prompt in enumerate(batch):
        runner.add_request(f"{tag}.{i}", prompt, SamplingParams(max_new_tokens=NEW_TOKENS))
    began = time.perf_counter()
    while runner.has_work:
        runner.step()
    return len(batch) * NEW_TOKENS / (time.perf_counter() - began)


def generate_rate(model: LlamaForCausalLM, batch: Sequence[Sequence[int]]) -> float:
    """Tokens a second of transformers' generate on equal-length prompts, prefill included."""
    ids = torch.tensor(batch)
    began = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert out.shape[1] == PROMPT_TOKENS + NEW_TOKENS
    return len(batch) * NEW_TOKENS / (time.perf_counter() - began)


def paired(a: Callable[[int], float], b: Callable[[int], float], rounds: int) -> Ratio:
    """Median of a/b over alternating runs, after one warm-up of each."""
    a(-1), b(-1)
    return Ratio.of([a(i) / b(i) for i in range(rounds)])


def against_generate(rounds: int) -> list[tuple[str, Ratio, float]]:
    model = LlamaForCausalLM.from_pretrained(checkpoint_path("tiny"), dtype=torch.float32).eval()
    rows = []
    for size, floor in ((1, 1.5), (8, 1.3)):
        batch, plain = prompts(size), engine(None)
        ratio = paired(
            lambda i, plain=plain, batch=batch: decode_rate(plain, batch, f"b{i}"),
            lambda i, batch=batch: generate_rate(model, batch),
            rounds,
        )
        rows.append((f"plain decode / transformers generate, batch {size}", ratio, floor))
    return rows


def eagle_against_plain(rounds: int) -> list[tuple[str, Ratio, float]]:
    """EAGLE over plain decode at batch 1, mean over four prompts run one after another, best setting last."""
    plain, batch = engine(None), prompts(4)
    rows = []
    for algorithm, steps in EAGLE_SETTINGS:
        drafting = engine({"algorithm": algorithm, "num_steps": steps})

        def serve(runner: Engine, tag: str) -> float:
            return statistics.harmonic_mean([decode_rate(runner, [p], f"{tag}.{n}") for n, p in enumerate(batch)])

        ratio = paired(
            lambda i, drafting=drafting, serve=serve: serve(drafting, f"s{i}"),
            lambda i, serve=serve, tag=f"{algorithm}{steps}": serve(plain, f"{tag}p{i}"),
            rounds,
        )
        rows.append((f"{algorithm} {steps} steps / plain decode, batch 1", ratio, 0.0))
    best = max(rows, key=lambda row: row[1].median)
    return [*rows, (f"best: {best[0]}", best[1], 1.2)]


class _Recorder:
    """Wraps a model's forward and logits; keeps the calls of one step so that they can be run again alone."""

    def __init__(self, *models: Any) -> None:
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        for model in models:
            for name in ("forward", "logits", "project"):
                if hasattr(model, name):
                    self._wrap(model, name)

    def _wrap(self, model: Any, name: str) -> None:
        original = getattr(model, name)

        def call(*args: Any) -> Any:
            self.calls.append((original, args))
            return original(*args)

        object.__setattr__(model, name, call)


def step_overhead(rounds: int) -> list[tuple[str, Ratio, float]]:
    """A speculative step over the sum of its model forwards, run again alone on the same inputs.

    On one thread, as the harness's workers run: more threads shorten the forwards only.
    """
    torch.set_num_threads(1)
    rows = []
    for settings, floor in (
        ({"algorithm": "EAGLE", "num_steps": 3}, 1.3),
        ({"algorithm": "EAGLE3", "num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 8}, 1.3),
    ):
        runner = engine(settings)
        recorder = _Recorder(runner.model, runner.view.eagle.drafter.model)
        runner.add_request("a", prompts(1)[0], SamplingParams(max_new_tokens=NEW_TOKENS * 2))
        runner.step()
        ratios = []
        for index in range(5 + rounds * 5):
            if not runner.has_work:
                break
            recorder.calls.clear()
            began = time.perf_counter()
            runner.step()
            whole = time.perf_counter() - began
            calls = list(recorder.calls)
            with torch.inference_mode():
                began = time.perf_counter()
                for function, args in calls:
                    function(*args)
                alone = time.perf_counter() - began
            if index >= 5:
                ratios.append(whole / alone)
        topk = settings.get("eagle_topk", 1)
        rows.append((f"speculative step / its forwards alone, topk {topk}, one thread", Ratio.of(ratios), floor))
    return rows


def step_seconds(runner: Engine, batch: Sequence[Sequence[int]], tag: str) -> float:
    """Processor time of a decode step, over whole requests."""
    for i, prompt in enumerate(batch):
        runner.add_request(f"{tag}.{i}", prompt, SamplingParams(max_new_tokens=NEW_TOKENS))
    steps, spent = 0, 0.0
    while runner.has_work:
        began = time.process_time()
        if runner.step().kind == "decode":
            steps, spent = steps + 1, spent + time.process_time() - began
    return spent / steps


def first_worker(rounds: int) -> list[tuple[str, Ratio, float]]:
    """A decode step of the worker v1 over one of v2 on the same requests, on one thread."""
    torch.set_num_threads(1)
    rows = []
    for page, topk in ((1, 1), (1, 4), (16, 1), (16, 4)):
        shape = {"num_steps": 4, "eagle_topk": topk, "num_draft_tokens": 5 if topk == 1 else 9}
        pair = [engine({"worker": worker, **shape}, page_size=page) for worker in ("v1", "v2")]
        for size in (1, 4):
            ratio = paired(
                lambda i, pair=pair, size=size: step_seconds(pair[0], prompts(size), f"{size}.{i}"),
                lambda i, pair=pair, size=size: step_seconds(pair[1], prompts(size), f"{size}.{i}"),
                rounds,
            )
            rows.append((f"v1's step / v2's, page {page}, topk {topk}, batch {size}, processor time", ratio, 1.15))
    return rows


def accepting(lengths: Sequence[int]) -> Callable[..., Acceptance]:
    """Stage 4 of chains with the number of accepted tokens given, bonus included, in turn and whatever was drafted."""
    turns = itertools.cycle(lengths)

    def accept_so_many(requests: Any, tree: Any, logits: Any, spec: Any, seed: int) -> Acceptance:
        found, (batch, nodes), length = accept(requests, tree, logits, spec, seed), tree.tokens.shape, next(turns)
        rank = torch.arange(nodes)
        after = torch.cat([tree.tokens[:, 1:], tree.tokens[:, :1]], dim=1)
        after[:, length - 1] = logits.view(batch, nodes, -1)[:, length - 1].argmax(-1)
        index = torch.arange(0, batch * nodes, nodes).unsqueeze(1) + rank
        return Acceptance(
            torch.where(rank < length, after, 0).view(-1).to(found.predict.dtype),
            torch.where(rank < length, index, -1).to(found.accept_index.dtype),
            torch.full_like(found.num_correct_drafts, length - 1),
        )

    return accept_so_many


def layers_against_head(rounds: int) -> list[tuple[str, Ratio, float]]:
    """A decode step that drafts by three next-n layers over one that drafts by an EAGLE head in three steps.

    The target is one, the draft layers are of one size, and either side accepts 2 and 3 tokens in turn, whatever it
    drafted: so both make as many steps, over as many positions, for as many tokens. On one thread, eight steps of one
    and eight of the other in turn.
    """
    torch.set_num_threads(1)
    pair = [engine({"algorithm": algorithm, "num_steps": 3}) for algorithm in ("MTP", "EAGLE")]
    rows = []
    for size in (1, 4):
        with mock.patch("specdebug.engine.textbook.speculative.worker.accept", accepting((2, 3))):
            times = [_medians_in_turn(pair, prompts(size), f"{size}.{i}") for i in range(rounds + 1)][1:]
        ratio = Ratio.of([layers / head for layers, head in times])
        rows.append((f"MTP's step / EAGLE's, 3 drafts, accept length 2.5, batch {size}", ratio, 1.0))
    return rows


def _medians_in_turn(runners: Sequence[Engine], batch: Sequence[Sequence[int]], tag: str) -> list[float]:
    """Median seconds of each engine's decode steps, in blocks of eight, the first of a block left out: it finds the
    other's weights in the caches."""
    for runner in runners:
        for i, prompt in enumerate(batch):
            runner.add_request(f"{tag}.{i}", prompt, SamplingParams(max_new_tokens=NEW_TOKENS))
        while runner.step().kind != "decode":
            pass
    taken: list[list[float]] = [[] for _ in runners]
    while all(runner.has_work for runner in runners):
        for runner, seconds in zip(runners, taken, strict=True):
            seconds += _block(runner)[1:]
    return [statistics.median(seconds) for seconds in taken]


def _block(runner: Engine) -> list[float]:
    """Seconds of up to eight steps."""
    seconds = []
    while runner.has_work and len(seconds) < 8:
        began = time.perf_counter()
        runner.step()
        seconds.append(time.perf_counter() - began)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    table = Table(title=f"tiny, fp32, torch {torch.__version__}, {torch.get_num_threads()} threads")
    for column in ("what", "ratio: median (range)", "asked"):
        table.add_column(column)
    for part in (against_generate, eagle_against_plain, step_overhead, first_worker, layers_against_head):
        for what, ratio, asked in part(rounds):
            bound = "at most" if "step / " in what else "at least"
            table.add_row(what, str(ratio), f"{bound} {asked}" if asked else "")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
