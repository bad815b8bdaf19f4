"""Decoding with latent attention on a GPU, against reading the weights and the KV once.

``python benchmarks/gpu/latent.py OUT [--backend triton] [--rounds N]`` makes targets of DeepSeek-V2-Lite's shape (27
layers, latents of 512 and key parts of 64, 16 heads) with random weights, decodes at several batch sizes and lengths,
prints what the forward of a step takes (its graph, replayed alone) and the whole step, and writes ``latent.json`` to
the folder OUT. One target has the published model's experts, of
which a step reads those that its tokens chose, counted in steps without a graph; one has dense MLPs, as wide as what a
single token reads of the experts. ``--mlp`` chooses one of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.engine.kernels.triton import experts
from specdebug.engine.model.deepseek_config import DeepseekConfig, ExpertsConfig
from specdebug.engine.model.latent import RoutedExperts
from specdebug.engine.model.loader import build_deepseek
from specdebug.engine.model.models import TargetModel
from specdebug.engine.model.weights import DeepseekWeights
from specdebug.engine.textbook.engine import Models

sys.path.insert(0, str(Path(__file__).parent))
from bounds import Bound, add_flag, verdict
from decode import Row, bandwidth, counted_replays, timed
from models import RandomTensors

V2_LITE = DeepseekConfig(
    hidden_size=2048,
    num_layers=27,
    num_heads=16,
    q_lora_rank=None,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    intermediate_size=10944,
    first_k_dense_replace=27,
    experts=ExpertsConfig(64, 6, 1, 1, 1408, 2, 1.0, False),
    num_nextn_layers=0,
    vocab_size=102400,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    rope_interleave=True,
    tie_word_embeddings=False,
    max_position_embeddings=163840,
    eos_token_ids=(),
)
"""deepseek-ai/DeepSeek-V2-Lite's config.json, but without RoPE scaling and with a sigmoid router."""

CASES = ((1, 512), (1, 4096), (8, 4096), (32, 4096), (64, 4096))
"""Requests at once, and the tokens that each has."""

MLPS = {"experts": 1, "dense": V2_LITE.num_layers}
"""The layers before the first one with experts."""

BOUNDS = {1: 2.5, 8: 2.3, 32: 2.1, 64: 2.0}
"""By requests at once: the most that a forward may take of what reading alone would (docs/benchmarks.md)."""

STEPS = 16
"""Timed in one go."""


def make_target(config: DeepseekConfig) -> TargetModel:
    """The target, in bf16 on the GPU."""
    source = RandomTensors(torch.bfloat16, torch.device("cuda"), 0)
    return build_deepseek(DeepseekWeights(source, config, torch.bfloat16, source.device), 8192)


def weight_bytes(target: TargetModel, experts: float) -> int:
    """The weights that a forward reads: layers and head, and of each sparse layer that many experts."""
    total: float = target.lm_head.numel()
    for _, layer in target.layers:
        held: Any = layer
        parts = [held.projection, held.q_up, held.k_up, held.v_up, held.output]
        if isinstance(held.mlp, RoutedExperts):
            parts.append(held.mlp.router)
            total += (held.mlp.gate_up[0].numel() + held.mlp.down[0].numel()) * experts
        else:
            parts += [held.mlp.gate_up, held.mlp.down]
        total += sum(part.numel() for part in parts if part is not None)
    return int(total * target.lm_head.element_size())


def experts_read(target: TargetModel, backend: str, batch: int, length: int) -> float:
    """Count the experts that a step reads of a layer, those of every token included; 0 without experts."""
    if all(not isinstance(layer.mlp, RoutedExperts) for _, layer in target.layers):
        return 0.0
    counts: list[int] = []

    def counting(normed: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        chosen, factors = choose(normed, *rest)
        if chosen.shape[0] == batch:
            counts.append(chosen.unique().numel())
        return chosen, factors

    choose = experts.route
    experts.route = counting
    try:
        engine = decoding(target, backend, batch, length, graphs=False)
        counts.clear()
        for _ in range(3):
            engine.step()
    finally:
        experts.route = choose
    return statistics.mean(counts)


def decoding(target: TargetModel, backend: str, batch: int, length: int, *, graphs: bool = True) -> Engine:
    """An engine with that many requests, each past its prompt of ``length`` tokens."""
    config = EngineConfig.from_dict(
        {
            "device": "cuda",
            "dtype": "bfloat16",
            "attention_backend": backend,
            "context_length": length + 256,
            "max_running_requests": batch,
            "radix_cache": False,
            "speculative": None,
            "cuda_graph": {"enabled": graphs, "max_bs": batch, "capture_bs": [batch]},
            "memory": {"num_slots": batch * (length + 320), "fill": "zeros"},
        }
    )
    engine = Engine(config, Models(target, None))
    generator = torch.Generator().manual_seed(0)
    for number in range(batch):
        prompt = torch.randint(0, target.config.vocab_size, (length,), generator=generator).tolist()
        engine.add_request(f"r{number}", prompt, SamplingParams(max_new_tokens=250))
    while not all(request.output_ids for request in engine.requests.values()):
        engine.step()
    for _ in range(3):
        engine.step()
    return engine


def step_time(engine: Engine) -> float:
    """Seconds a step, the device idle before and after."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        engine.step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / STEPS


def measure(mlp: str, backend: str, rounds: int, speed: float) -> list[dict[str, Any]]:
    """A row a case of one target."""
    config = DeepseekConfig(**{**vars(V2_LITE), "first_k_dense_replace": MLPS[mlp]})
    target = make_target(config)
    rows = []
    for batch, length in CASES:
        experts = experts_read(target, backend, batch, length)
        kv = batch * length * config.head_dim * 2 * config.num_layers
        floor_ms = 1e3 * (weight_bytes(target, experts) + kv) / speed
        engine = decoding(target, backend, batch, length)
        with counted_replays() as replays:
            engine.step()
        (graph,) = replays
        whole, forward = [], []
        for _ in range(rounds):
            whole.append(1e3 * step_time(engine))
            forward.append(1e3 * timed(graph.replay, STEPS))
        del engine, graph, replays
        gc.collect()  # an engine holds graphs in cycles; the next one needs their memory
        what = f"{mlp}, batch {batch}, {length} tokens"
        step, row = Row.of(f"{what}: a step", whole, "ms"), Row.of(f"{what}: its forward", forward, "ms")
        found = {"experts": experts, "floor_ms": floor_ms, "times_floor": row.median / floor_ms, "step": asdict(step)}
        rows.append({**asdict(row), **found, "batch": batch})
        read = f" with {experts:.1f} experts a layer" if experts else ""
        print(
            f"{what}: forward {row.median:.3f} ms, {row.median / floor_ms:.2f} times reading alone"
            f" ({floor_ms:.3f} ms{read}); a step {step.median:.3f} ms",
            flush=True,
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for latent.json")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--rounds", type=int, default=5, help=f"at most 15, of {STEPS} steps each")
    parser.add_argument("--mlp", action="append", choices=sorted(MLPS))
    add_flag(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    speed = bandwidth()
    print(f"reading: {speed / 1e12:.2f} TB/s on {torch.cuda.get_device_name()}")
    rows = [row for mlp in options.mlp or MLPS for row in measure(mlp, options.backend, options.rounds, speed)]
    (options.out / "latent.json").write_text(json.dumps(rows, indent=2))
    figures = ((row["what"], row["times_floor"], Bound(at_most=BOUNDS[row["batch"]])) for row in rows)
    return verdict(figures, no_bounds=options.no_bounds)


if __name__ == "__main__":
    sys.exit(main())
