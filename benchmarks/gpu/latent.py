"""Decoding with latent attention on a GPU, against reading the weights and the KV once.

``python benchmarks/gpu/latent.py OUT [--backend triton] [--rounds N]`` makes a target of DeepSeek-V2-Lite's shape (27
layers, latents of 512 and key parts of 64, 16 heads) with random weights, decodes at several batch sizes and lengths,
prints what a step takes and writes ``latent.json`` to the folder OUT. Its MLPs are dense, as wide as what a token reads
of the published model's experts; ``--experts`` makes the experts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.engine.engine import Models
from specdebug.engine.model.deepseek import DeepseekWeights, build_deepseek
from specdebug.engine.model.deepseek_config import DeepseekConfig, ExpertsConfig
from specdebug.engine.model.llama import TargetModel

sys.path.insert(0, str(Path(__file__).parent))
from decode import Row, bandwidth
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

CASES = ((1, 512), (1, 4096), (8, 4096), (32, 4096))
"""Requests at once, and the tokens that each has."""


def make_target(config: DeepseekConfig) -> TargetModel:
    """The target, in bf16 on the GPU."""
    source = RandomTensors(torch.bfloat16, torch.device("cuda"), 0)
    return build_deepseek(DeepseekWeights(source, config, torch.bfloat16, source.device), 8192)


def weight_bytes(target: TargetModel, batch: int) -> int:
    """What a forward of ``batch`` tokens reads: layers, head, and of routed experts at most as many as are chosen."""
    total = target.lm_head.numel()
    for _, layer in target.layers:
        held: Any = layer
        parts = [held.projection, held.q_up, held.k_up, held.v_up, held.output]
        for name in held.mlp.__slots__:
            part = getattr(held.mlp, name)
            if isinstance(part, Tensor) and part.ndim == 3:
                count, chosen = part.shape[0], held.mlp.config.per_token
                total += part.numel() * min(count, batch * chosen) // count
            elif isinstance(part, Tensor):
                parts.append(part)
        total += sum(part.numel() for part in parts if part is not None)
    return total * target.lm_head.element_size()


def decode_time(target: TargetModel, backend: str, batch: int, length: int, rounds: int) -> list[float]:
    """Seconds of a step, in each round, with that many keys a request."""
    config = EngineConfig.from_dict(
        {
            "device": "cuda",
            "dtype": "bfloat16",
            "attention_backend": backend,
            "context_length": length + 64,
            "max_running_requests": batch,
            "radix_cache": False,
            "speculative": None,
            "cuda_graph": {"max_bs": batch, "capture_bs": [batch]},
            "memory": {"num_slots": batch * (length + 128), "fill": "zeros"},
        }
    )
    engine = Engine(config, Models(target, None))
    generator = torch.Generator().manual_seed(0)
    for number in range(batch):
        prompt = torch.randint(0, target.config.vocab_size, (length,), generator=generator).tolist()
        engine.add_request(f"r{number}", prompt, SamplingParams(max_new_tokens=60))
    while not all(request.output_ids for request in engine.requests.values()):
        engine.step()
    for _ in range(3):
        engine.step()
    return [_steps(engine, 4) for _ in range(rounds)]


def _steps(engine: Engine, count: int) -> float:
    """Seconds a step, the device idle before and after."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        engine.step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for latent.json")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--experts", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    shape = {**vars(V2_LITE), "first_k_dense_replace": 1} if options.experts else vars(V2_LITE)
    config = DeepseekConfig(**shape)
    target, speed = make_target(config), bandwidth()
    print(f"reading: {speed / 1e12:.2f} TB/s on {torch.cuda.get_device_name()}")
    rows = []
    for batch, length in CASES:
        kv = batch * length * config.head_dim * 2 * config.num_layers
        floor = (weight_bytes(target, batch) + kv) / speed
        taken = decode_time(target, options.backend, batch, length, options.rounds)
        row = Row.of(f"batch {batch}, {length} tokens", [1e3 * each for each in taken], "ms")
        rows.append({**asdict(row), "floor_ms": 1e3 * floor, "times_floor": row.median / (1e3 * floor)})
        print(
            f"{row.what}: {row.median:.3f} ms, reading alone {1e3 * floor:.3f} ms, {rows[-1]['times_floor']:.2f} times"
        )
    (options.out / "latent.json").write_text(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
