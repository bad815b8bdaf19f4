"""One decode forward of the shipped target against transformers' own, and of the draft heads against it.

Both sides run from the same cached context with the simplest attention there is, so that only the models are
compared. Calls are taken in turn, ours and theirs, and the ratios are of neighbours.
``python benchmarks/model_forward.py [--rounds N]``
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from specdebug.base.assets import checkpoint_path
from specdebug.engine.model.interface import DraftModel
from specdebug.engine.model.loader import load_draft, load_target
from specdebug.engine.model.models import TargetModel

CONTEXT = 256
CALLS = 8  # per sample
HEADS: tuple[tuple[Literal["EAGLE", "EAGLE3"], str], ...] = (
    ("EAGLE", "tiny-eagle"),
    ("EAGLE3", "tiny-eagle3"),
)
# what is timed, and what puts the cache back afterwards
Step = tuple[Callable[[], object], Callable[[], object]]


class CachedAttention:
    """One new token in each of B sequences of CONTEXT tokens; writes at the end, attends to all."""

    def __init__(self, num_layers: int, batch: int, num_kv_heads: int, head_dim: int) -> None:
        shape = (num_layers, batch, num_kv_heads, CONTEXT + 1, head_dim)
        self._keys, self._values = torch.randn(shape), torch.randn(shape)

    def __call__(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._keys[layer_id], self._values[layer_id]
        keys[:, :, CONTEXT] = k
        values[:, :, CONTEXT] = v
        out = F.scaled_dot_product_attention(q.unsqueeze(2), keys, values, enable_gqa=True)
        return out.view(q.shape[0], -1)


@dataclass(frozen=True)
class Row:
    """Median microseconds of each side, and the median, least and greatest ratio of neighbouring samples."""

    name: str
    ours_us: float
    theirs_us: float
    ratio: float
    low: float
    high: float


def measure(rounds: int = 60) -> list[Row]:
    """Time the target at batch 1 and 8 against transformers, then each head against the target at batch 1."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    folder = checkpoint_path("tiny")
    target = load_target(folder)
    theirs = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    with torch.inference_mode():
        for batch in (1, 8):
            ours_step = _target_step(target, batch)
            rows.append(_pair(f"target, batch {batch}", ours_step, _transformers_step(theirs, batch), rounds))
        for algorithm, checkpoint in HEADS:
            draft = load_draft(checkpoint_path(checkpoint), algorithm=algorithm, target=target)
            name = f"{algorithm} head (against the target)"
            rows.append(_pair(name, _draft_step(draft), _target_step(target, 1), rounds))
    return rows


def _target_step(target: TargetModel, batch: int) -> Step:
    config = target.config
    attention = CachedAttention(config.num_layers, batch, config.num_kv_heads, config.head_dim)
    ids, positions = torch.arange(batch), torch.full((batch,), CONTEXT)
    return lambda: target.logits(target.forward(ids, positions, attention).hidden), _nothing


def _draft_step(draft: DraftModel) -> Step:
    attention = CachedAttention(draft.num_layers, 1, draft.num_kv_heads, draft.head_dim)
    ids, positions, hidden = torch.tensor([5]), torch.tensor([CONTEXT]), torch.randn(1, draft.hidden_size)
    return lambda: draft.logits(draft.forward(ids, positions, hidden, attention)), _nothing


def _transformers_step(model: LlamaForCausalLM, batch: int) -> Step:
    cache = DynamicCache(config=model.config)
    model(torch.randint(0, model.config.vocab_size, (batch, CONTEXT)), past_key_values=cache, use_cache=True)
    ids = torch.arange(batch)[:, None]

    def step() -> None:
        model(ids, past_key_values=cache, use_cache=True)

    # negative, the one spelling that transformers 4 and 5 share: drop the token just added
    return step, lambda: cache.crop(-1)


def _pair(name: str, ours: Step, theirs: Step, rounds: int) -> Row:
    samples = [(_sample(ours), _sample(theirs)) for _ in range(rounds + 5)][5:]
    ratios = [b / a for a, b in samples]
    medians = [statistics.median(side) for side in zip(*samples, strict=True)]
    return Row(name, medians[0], medians[1], statistics.median(ratios), min(ratios), max(ratios))


def _sample(step: Step) -> float:
    forward, reset = step
    total = 0.0
    for _ in range(CALLS):
        start = time.perf_counter()
        forward()
        total += time.perf_counter() - start
        reset()
    return total / CALLS * 1e6


def _nothing() -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    title = f"{torch.get_num_threads()} threads"
    table = Table("forward", "ours µs", "theirs µs", "theirs / ours", title=title)
    for row in measure(parser.parse_args().rounds):
        ratio = f"{row.ratio:.2f} ({row.low:.2f} to {row.high:.2f})"
        table.add_row(row.name, f"{row.ours_us:.0f}", f"{row.theirs_us:.0f}", ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
