"""Distil an EAGLE or EAGLE-3 head from a trained target, unrolled over its own steps.

    python tools/train_draft.py --kind eagle3 --target DIR --out DIR --device cuda

The text is corpus prompts followed by the target's own continuations, greedy and sampled: at run time a head
sees little else. Each step unrolls the head as deep as it will draft, reading its own outputs, so that the
fifth guess of a chain is trained as such.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from train_target import MAX_POSITIONS
from training import autocast, base_config, corpus_tokens, crops, save_checkpoint, scaled_normal, train

from specdebug import corpus
from specdebug.reference import (
    DraftHead,
    ModelConfig,
    draft_logits,
    draft_unroll,
    greedy_generate,
    load_weights,
    target_forward,
)

NUM_STEPS = 5
STEP_DECAY = 0.85
"""A guess counts only when all before it were right, so later steps weigh less."""
PROMPT_WEIGHT = 0.1
"""Corpus text matters to a head as the prefix it attends to, less as something to guess."""
HIDDEN_WEIGHT = 0.2
"""EAGLE feeds its output back in place of the target's state, so it is also drawn towards that state."""
DRAFT_VOCAB_SIZE = 1280
INTERMEDIATE_SIZE = 448
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


def eagle_weights(
    config: ModelConfig, target: dict[str, Tensor], keep: Tensor | None, generator: torch.Generator
) -> dict[str, Tensor]:
    """A fresh head under published names; ``keep``, its vocabulary in target ids, makes it an EAGLE-3 one."""
    device = target["model.embed_tokens.weight"].device
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def normal(rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return scaled_normal(rows, columns, generator, device, gain)

    def ones() -> Tensor:
        return torch.ones(hidden, device=device)

    layer = "layers.0." if keep is None else "midlayer."
    width = hidden if keep is None else 2 * hidden
    weights = {
        f"{layer}self_attn.q_proj.weight": normal(heads, width),
        f"{layer}self_attn.k_proj.weight": normal(kv, width),
        f"{layer}self_attn.v_proj.weight": normal(kv, width),
        f"{layer}self_attn.o_proj.weight": normal(hidden, heads, 0.3),
        f"{layer}post_attention_layernorm.weight": ones(),
        f"{layer}mlp.gate_proj.weight": normal(inner, hidden),
        f"{layer}mlp.up_proj.weight": normal(inner, hidden),
        f"{layer}mlp.down_proj.weight": normal(hidden, inner, 0.3),
    }
    if keep is None:
        return weights | {
            "fc.weight": normal(hidden, 2 * hidden),
            "fc.bias": torch.zeros(hidden, device=device),
        }
    in_draft = torch.zeros(config.vocab_size, dtype=torch.bool, device=device)
    in_draft[keep] = True
    return weights | {
        "fc.weight": normal(hidden, 3 * hidden),
        "midlayer.input_layernorm.weight": ones(),
        "midlayer.hidden_norm.weight": ones(),
        "norm.weight": target["model.norm.weight"].clone(),
        "lm_head.weight": target["model.embed_tokens.weight"][keep].clone(),
        "d2t": keep - torch.arange(len(keep), device=device),
        "t2d": in_draft,
    }


def draft_loss(
    head: DraftHead, target: dict[str, Tensor], config: ModelConfig, ids: Tensor, prompt_length: int
) -> Tensor:
    """Cross entropy of every unrolled step with the target's distribution, weighted by position and depth."""
    with torch.no_grad(), autocast(ids.device):
        logits, hidden, aux = target_forward(target, config, ids)
    with autocast(ids.device):
        outputs = draft_unroll(head, ids[:, 1:], (aux if head.is_eagle3 else hidden)[:, :-1], NUM_STEPS)
        guesses = [draft_logits(head, out) for out in outputs]
    goal = logits[:, 1:].float()
    positions = torch.arange(goal.shape[1], device=ids.device)
    weight = torch.where(positions >= prompt_length - 2, 1.0, PROMPT_WEIGHT).expand(len(ids), -1)
    if head.is_eagle3:
        reachable = head.weights["t2d"]
        weight = weight * reachable[goal.argmax(-1)]
        goal = goal[..., reachable]
    goal = goal.softmax(-1)
    total = torch.zeros((), device=ids.device)
    for step, guess in enumerate(guesses):
        real = weight * (positions >= step)
        error = -(goal * guess.float().log_softmax(-1)).sum(-1)
        if not head.is_eagle3:
            distance = F.smooth_l1_loss(outputs[step].float(), hidden[:, 1:].float(), reduction="none").mean(-1)
            error = error + HIDDEN_WEIGHT * distance
        total = total + STEP_DECAY**step * (error * real).sum() / real.sum()
    return total


def draft_config(config: ModelConfig) -> dict[str, object]:
    """The published ``config.json`` of a head of this shape."""
    shared = base_config(config, MAX_POSITIONS)
    if config.draft_vocab_size is None:
        return {"architectures": ["LlamaForCausalLMEagle"], **shared, "bias": True}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **shared,
        "draft_vocab_size": config.draft_vocab_size,
    }


@dataclass(frozen=True)
class Material:
    """A trained target and the text it continued: what either head learns from."""

    target: dict[str, Tensor]
    config: ModelConfig
    rounds: list[Round]


def prepare(
    target_path: Path,
    *,
    device: torch.device,
    rows: int,
    seed: int = 0,
    shapes: tuple[tuple[int, int, float], ...] = ROUNDS,
) -> Material:
    """Load the target and let it continue ``rows`` prompts of each shape."""
    target, config = load_weights(target_path, device=device)
    tokenizer = Tokenizer.from_file(str(target_path / "tokenizer.json"))
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
    """Train one head (``kind`` eagle or eagle3) for ``steps`` of about ``batch_tokens`` tokens; write it."""
    target, config, rounds = material.target, material.config, material.rounds
    generator = torch.Generator().manual_seed(seed)
    keep = frequent_tokens(rounds, config.vocab_size, DRAFT_VOCAB_SIZE) if kind == "eagle3" else None
    shape = replace(
        config,
        num_layers=1,
        intermediate_size=INTERMEDIATE_SIZE,
        draft_vocab_size=DRAFT_VOCAB_SIZE if kind == "eagle3" else None,
        # An EAGLE head borrows the target's lm_head and so inherits whether it is tied; EAGLE-3 has its own.
        tie_word_embeddings=config.tie_word_embeddings and kind == "eagle",
    )
    weights = eagle_weights(shape, target, keep, generator)
    embed = target["model.embed_tokens.weight"]
    head = DraftHead(weights=weights, config=shape, embed=embed, lm_head=target.get("lm_head.weight", embed))
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
            save_checkpoint(out, weights, draft_config(shape))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["eagle", "eagle3"], required=True)
    parser.add_argument("--target", type=Path, required=True)
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
