"""Distil a draft head from a trained target, unrolled over its own steps.

    python tools/train_draft.py --kind eagle3 --target DIR --out DIR --device cuda

The text is corpus prompts followed by the target's own continuations, greedy and sampled: at run time a head
sees little else. Each step unrolls the head as deep as it will draft, reading its own outputs, so that the
fifth guess of a chain is trained as such. The layers of multi-token prediction are trained side by side, each for the
token that it drafts; what they read is right there, as it is in a chain whose drafts are accepted so far.

Kinds: ``eagle`` and ``eagle3``; ``nextn``, DeepSeek's next-n layer used as an EAGLE head; ``mtp``, three next-n layers;
``assistant``, which reads the target's keys and values.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from draft_heads import DRAFT_VOCAB_SIZE, KINDS, file_config, head_config, head_weights
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from training import autocast, corpus_tokens, crops, save_checkpoint, train

from specdebug.base import corpus
from specdebug.base.assets import checkpoint_path, tokenizer_path
from specdebug.reference.config import ModelConfig
from specdebug.reference.draft import (
    AssistantHead,
    DraftHead,
    MTPHead,
    assistant_logits,
    assistant_unroll,
    draft_logits,
    draft_unroll,
    frozen_kv,
    mtp_unroll,
)
from specdebug.reference.target import DenseCache, greedy_generate, target_forward
from specdebug.reference.weights import Draft, join_draft, load_weights

NUM_STEPS = 5
STEP_DECAY = 0.85
"""A guess counts only when all before it were right, so later steps weigh less."""
PROMPT_WEIGHT = 0.1
"""Corpus text matters to a head as the prefix it attends to, less as something to guess."""
HIDDEN_WEIGHT = 0.2
"""What is fed back in place of the target's state is also drawn towards that state."""
# (prompt tokens, new tokens, share of steps): short prompts, and prompts as long as scenarios share.
ROUNDS = ((64, 128, 0.3), (320, 128, 0.3), (704, 128, 0.3), (1280, 128, 0.1))


@dataclass(frozen=True)
class Round:
    """Prompts of one length and the target's continuations, int64 [rows, prompt + new]."""

    prompt_length: int
    ids: Tensor
    share: float


def target_rounds(
    weights: dict[str, Tensor],
    config: ModelConfig,
    tokens: Tensor,
    *,
    rows: int,
    generator: torch.Generator,
    shapes: tuple[tuple[int, int, float], ...] = ROUNDS,
) -> list[Round]:
    """Continue ``rows`` corpus prompts a shape: half greedily, a quarter each at temperatures 0.7 and 1."""
    device = tokens.device
    row = torch.arange(rows, device=device)
    temperature = torch.where(row % 4 < 2, 0.0, torch.where(row % 4 == 2, 0.7, 1.0))[:, None]
    on_device = torch.Generator(device).manual_seed(int(torch.randint(2**31, (1,), generator=generator)))

    def pick(logits: Tensor) -> Tensor:
        noise = torch.empty_like(logits, dtype=torch.float32).exponential_(generator=on_device)
        return (logits.float() - temperature * noise.log()).argmax(-1)

    half = {n: w.to(torch.bfloat16) if device.type == "cuda" else w for n, w in weights.items()}
    rounds = []
    # cuDNN's attention would plan anew for every length, and here every step has its own.
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        for prompt, new, share in shapes:
            prompts = crops(tokens, rows, prompt, generator)
            rounds.append(Round(prompt, greedy_generate(half, config, prompts, new, pick=pick), share))
    return rounds


def frequent_tokens(rounds: list[Round], vocab_size: int, count: int) -> Tensor:
    """The ``count`` ids the target emits most, ascending, int64."""
    emitted = torch.cat([r.ids[:, r.prompt_length :].flatten() for r in rounds])
    return torch.bincount(emitted, minlength=vocab_size).argsort(descending=True, stable=True)[:count].sort().values


def unrolled(head: Draft, ids: Tensor, hidden: Tensor, aux: Tensor, cache: DenseCache) -> list[tuple[Tensor, Tensor]]:
    """Outputs and logits of each step over a text; row r of step k, [..., n-1-k, H], guesses token r+2+k."""
    if isinstance(head, MTPHead):
        outputs = mtp_unroll(head, ids, hidden)
        return [(out, draft_logits(layer, out)) for layer, out in zip(head.layers, outputs, strict=True)]
    if isinstance(head, AssistantHead):
        outputs = assistant_unroll(head, ids, hidden, frozen_kv(head, cache), NUM_STEPS)
        return [(out, assistant_logits(head, out)) for out in outputs]
    outputs = draft_unroll(head, ids[:, 1:], (aux if head.is_eagle3 else hidden)[:, :-1], NUM_STEPS)
    return [(out[:, step:], draft_logits(head, out[:, step:])) for step, out in enumerate(outputs)]


def draft_loss(head: Draft, target: dict[str, Tensor], config: ModelConfig, ids: Tensor, prompt_length: int) -> Tensor:
    """Cross entropy of every unrolled step with the target's distribution, weighted by position and depth."""
    dtype = torch.bfloat16 if ids.is_cuda else torch.float32
    with torch.no_grad(), autocast(ids.device):
        cache = DenseCache(config, ids.shape[1], batch=(len(ids),), dtype=dtype, device=ids.device)
        logits, hidden, aux = target_forward(target, config, ids, cache=cache)
    with autocast(ids.device):
        steps = unrolled(head, ids, hidden, aux, cache)
    goal = logits[:, 1:].float()
    positions = torch.arange(goal.shape[1], device=ids.device)
    weight = torch.where(positions >= prompt_length - 2, 1.0, PROMPT_WEIGHT).expand(len(ids), -1)
    fed_back = not isinstance(head, MTPHead)
    if isinstance(head, DraftHead) and head.is_eagle3:
        fed_back = False
        reachable = head.weights["t2d"]
        weight = weight * reachable[goal.argmax(-1)]
        goal = goal[..., reachable]
    goal = goal.softmax(-1)
    total = torch.zeros((), device=ids.device)
    for step, (output, guess) in enumerate(steps):
        error = -(goal[:, step:] * guess.float().log_softmax(-1)).sum(-1)
        if fed_back:
            distance = F.smooth_l1_loss(output.float(), hidden[:, 1 + step :].float(), reduction="none").mean(-1)
            error = error + HIDDEN_WEIGHT * distance
        real = weight[:, step:]
        total = total + STEP_DECAY**step * (error * real).sum() / real.sum()
    return total


@dataclass(frozen=True)
class Material:
    """A trained target and the text it continued: what every head learns from."""

    target: dict[str, Tensor]
    config: ModelConfig
    rounds: list[Round]


def prepare(
    target_name: str,
    *,
    device: torch.device,
    rows: int,
    seed: int = 0,
    shapes: tuple[tuple[int, int, float], ...] = ROUNDS,
) -> Material:
    """Load the target, a shipped name or a folder, and let it continue ``rows`` prompts of each shape."""
    target, config = load_weights(checkpoint_path(target_name), device=device)
    tokenizer = Tokenizer.from_file(str(tokenizer_path(target_name)))
    tokens = corpus_tokens(tokenizer, corpus.train_files()).to(device)
    began = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    rounds = target_rounds(target, config, tokens, rows=rows, generator=generator, shapes=shapes)
    print(f"continuations took {time.perf_counter() - began:.0f} s", flush=True)
    return Material(target, config, rounds)


def train_draft(
    material: Material,
    out: Path,
    *,
    kind: str,
    device: torch.device,
    steps: int,
    batch_tokens: int,
    seed: int = 0,
) -> None:
    """Train one head for ``steps`` of about ``batch_tokens`` tokens; write it."""
    target, config, rounds = material.target, material.config, material.rounds
    generator = torch.Generator().manual_seed(seed)
    keep = frequent_tokens(rounds, config.vocab_size, DRAFT_VOCAB_SIZE) if kind == "eagle3" else None
    shape = head_config(kind, config)
    weights = head_weights(kind, shape, target, keep, generator)
    embed = target["model.embed_tokens.weight"]
    head = join_draft(weights, shape, embed, target.get("lm_head.weight", embed))
    parameters = sum(w.numel() for w in weights.values() if w.is_floating_point())
    print(f"{kind}: {parameters:,} parameters", flush=True)
    began = time.perf_counter()

    def loss_of_step(step: int) -> Tensor:
        drawn = torch.multinomial(torch.tensor([r.share for r in rounds]), 1, generator=generator)
        chosen = rounds[int(drawn)]
        count = max(1, batch_tokens // chosen.ids.shape[1])
        picked = torch.randint(len(chosen.ids), (count,), generator=generator).to(device)
        return draft_loss(head, target, config, chosen.ids[picked], chosen.prompt_length)

    def report(step: int, loss: float) -> None:
        print(f"{kind} {step:6d}  loss {loss:.3f}  {time.perf_counter() - began:.0f} s", flush=True)

    for step in train(
        weights, loss_of_step, steps=steps, weight_decay=0.02, report_every=max(1, steps // 8), report=report
    ):
        if step % max(1, steps // 4) == 0 or step == steps:
            save_checkpoint(out, weights, file_config(kind, shape))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--target", required=True, help="a folder, or a shipped name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int, default=2800)
    parser.add_argument("--batch-tokens", type=int, default=16384)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    device = torch.device(args.device)
    train_draft(
        prepare(args.target, device=device, rows=args.rows, seed=args.seed),
        args.out,
        kind=args.kind,
        device=device,
        steps=args.steps,
        batch_tokens=args.batch_tokens,
        seed=args.seed,
    )
