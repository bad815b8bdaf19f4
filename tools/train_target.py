"""Train a target, deep and narrow, on the training part of the corpus: a Llama, or one with DeepSeek's attention.

    python tools/train_target.py --out DIR --device cuda
    python tools/train_target.py --kind mla --out DIR --device cuda

DIR must hold the tokenizer (tools/train_tokenizer.py). Deep and narrow because a step's cost then lies in the
number of layers, which a one-layer draft saves; on a CPU that decides whether drafting pays.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from training import autocast, base_config, corpus_tokens, crops, layer_weights, save_checkpoint, scaled_normal, train

from specdebug.base import corpus
from specdebug.reference.config import LatentAttention, ModelConfig
from specdebug.reference.target import target_forward

MAX_POSITIONS = 8192
WEIGHT_DECAY = 0.5
CORRUPTED = 0.2
"""Share of input tokens replaced at random. The corpus is small, and no draft can follow a target that has
learnt it by heart: without this and with little decay, 24 epochs ended at 3.05 nats a held-out token and accept
lengths of 2.3; with it, 11 epochs end at 2.30."""

TARGET = ModelConfig(
    hidden_size=256,
    intermediate_size=256,
    num_layers=14,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=2048,
    tie_word_embeddings=True,
)

MLA_TARGET = ModelConfig(
    hidden_size=256,
    intermediate_size=256,
    num_layers=12,
    num_heads=4,
    num_kv_heads=4,
    head_dim=32,
    vocab_size=2048,
    tie_word_embeddings=True,
    latent=LatentAttention(q_lora_rank=128, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=64),
)
TARGETS = {"llama": TARGET, "mla": MLA_TARGET}


def initial_weights(config: ModelConfig, generator: torch.Generator, device: torch.device) -> dict[str, Tensor]:
    """Random float32 tensors under the names of a published checkpoint, projections [out, in]."""
    hidden = config.hidden_size
    # Each layer adds twice to the residual stream; this keeps its scale independent of depth.
    into_residual = (2 * config.num_layers) ** -0.5
    weights = {
        "model.embed_tokens.weight": scaled_normal(config.vocab_size, hidden, generator, device, 1.0),
        "model.norm.weight": torch.ones(hidden, device=device),
    }
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        weights[f"{prefix}input_layernorm.weight"] = torch.ones(hidden, device=device)
        weights |= layer_weights(config, prefix, generator, device, into_residual=into_residual)
    return weights


def cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean nats a token: logits [rows, n, V], ids [rows, n]."""
    return F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())


@torch.no_grad()
def validation_loss(weights: dict[str, Tensor], config: ModelConfig, tokens: Tensor, length: int) -> float:
    """Mean nats a token over at most 32 evenly spaced windows of held-out tokens."""
    windows = tokens[: len(tokens) // length * length].view(-1, length)
    windows = windows[:: max(1, len(windows) // 32)][:32]
    total = 0.0
    for window in windows.split(8):
        with autocast(tokens.device):
            logits, _, _ = target_forward(weights, config, window[:, :-1])
        total += cross_entropy(logits, window[:, 1:]).item() * len(window)
    return total / len(windows)


def train_target(
    out: Path,
    *,
    device: torch.device,
    steps: int,
    batch: int,
    length: int,
    seed: int = 0,
    config: ModelConfig = TARGET,
) -> float:
    """Train for ``steps`` of ``batch`` windows of ``length`` tokens; write it beside the tokenizer."""
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    generator = torch.Generator().manual_seed(seed)
    on_device = torch.Generator(device).manual_seed(seed)
    tokens = corpus_tokens(tokenizer, corpus.train_files()).to(device)
    heldout = corpus_tokens(tokenizer, corpus.heldout_files()).to(device)
    weights = initial_weights(config, generator, device)
    print(
        f"target: {sum(w.numel() for w in weights.values()):,} parameters, {len(tokens):,} training tokens, "
        f"{steps * batch * length / len(tokens):.1f} epochs, {len(heldout):,} held out",
        flush=True,
    )
    began = time.perf_counter()

    def loss_of_step(step: int) -> Tensor:
        window = crops(tokens, batch, length + 1, generator)
        ids, goal = window[:, :-1], window[:, 1:]
        noise = torch.rand(ids.shape, generator=on_device, device=device)
        # The noise below the threshold is itself uniform, so it also says which token to put there.
        ids = torch.where(noise < CORRUPTED, (noise / CORRUPTED * config.vocab_size).long(), ids)
        with autocast(device):
            logits, _, _ = target_forward(weights, config, ids)
        return cross_entropy(logits, goal)

    def report(step: int, loss: float) -> None:
        val = validation_loss(weights, config, heldout, length)
        seconds = time.perf_counter() - began
        print(f"target {step:6d}  loss {loss:.3f}  held-out {val:.3f}  {seconds:.0f} s", flush=True)

    architecture = "LlamaForCausalLM" if config.latent is None else "DeepseekV3ForCausalLM"
    file_config = {"architectures": [architecture], **base_config(config, MAX_POSITIONS)}
    for step in train(
        weights,
        loss_of_step,
        steps=steps,
        weight_decay=WEIGHT_DECAY,
        report_every=max(1, steps // 8),
        report=report,
    ):
        if step % max(1, steps // 4) == 0 or step == steps:
            save_checkpoint(out, weights, file_config)
    return validation_loss(weights, config, heldout, length)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=list(TARGETS), default="llama")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    train_target(
        args.out,
        device=torch.device(args.device),
        steps=args.steps,
        batch=args.batch,
        length=args.length,
        seed=args.seed,
        config=TARGETS[args.kind],
    )
