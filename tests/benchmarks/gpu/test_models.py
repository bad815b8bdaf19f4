"""Random models at toy size on a CPU: finite at any depth, guessed by their head, and the same in transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.gpu.models import LLAMA_8B, make_assistant, make_eagle, make_mtp, make_target
from benchmarks.gpu.reference import generate, make_reference
from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.engine.engine import Models
from specdebug.engine.model.config import LlamaConfig
from tests.engine.model.helpers import DenseAttention

SMALL = replace(
    LLAMA_8B,
    hidden_size=128,
    num_layers=12,
    num_heads=8,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=256,
    vocab_size=600,
    max_position_embeddings=16384,
)
PLAIN_ROPE = replace(SMALL, rope_scaling=None, rope_theta=777.0)
IDS = torch.randint(0, 600, (200,), generator=torch.Generator().manual_seed(0))
POSITIONS = torch.arange(200)


@torch.inference_mode()
def test_the_head_often_guesses_the_next_token_and_not_always():
    target = make_target(SMALL, torch.float32, "cpu", max_positions=300)
    draft = make_eagle(target)
    out = target.forward(IDS, POSITIONS, DenseAttention())
    chosen = target.logits(out.hidden).argmax(-1)
    assert bool(out.hidden.isfinite().all())
    # the head's slot p reads the token at p + 1 and the hidden at p
    guesses = draft.forward(IDS[1:], POSITIONS[:-1], out.hidden[:-1], DenseAttention())
    right = (draft.logits(guesses).argmax(-1) == chosen[1:]).float().mean()
    assert 0.5 < float(right) < 1.0


def test_the_8b_shape_is_the_published_one():
    assert LLAMA_8B.q_size + 2 * LLAMA_8B.kv_size == 6144
    per_layer = 4096 * (6144 + 4096 + 3 * 14336) + 2 * 4096
    assert 32 * per_layer + 2 * 128256 * 4096 + 4096 == 8_030_261_248


def test_same_seed_same_weights():
    first, second, other = (make_target(SMALL, torch.float32, "cpu", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.lm_head, second.lm_head)
    assert not torch.equal(first.lm_head, other.lm_head)


@pytest.mark.parametrize("config", [SMALL, PLAIN_ROPE], ids=["llama3", "plain"])
@torch.inference_mode()
def test_transformers_computes_the_same(config: LlamaConfig):
    pytest.importorskip("transformers")
    target = make_target(config, torch.bfloat16, "cpu", max_positions=300)
    theirs = make_reference(target)
    # torch's fused kernel for bf16 fails on a processor with AMX that is told to use AVX2 only (pack_vnni2)
    theirs.config._attn_implementation = "eager"
    expected = theirs(IDS[None]).logits[0]
    found = target.logits(target.forward(IDS, POSITIONS, DenseAttention()).hidden)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert float((found.float() - expected.float()).norm() / expected.float().norm()) < 0.03
    assert theirs.model.embed_tokens.weight.data_ptr() == target.embedding.data_ptr()


def test_generate_returns_the_continuation():
    pytest.importorskip("transformers")
    theirs = make_reference(make_target(SMALL, torch.bfloat16, "cpu", max_positions=300))
    out = generate(theirs, IDS[:20].view(2, 10), 5)
    assert out.shape == (2, 5)
    assert int(out.max()) < 600


def test_folded_gains_are_refused():
    with pytest.raises(ValueError, match="folded"):
        make_reference(make_target(SMALL, torch.float32, "cpu"))


MAKERS = {"EAGLE": make_eagle, "MTP": make_mtp, "FROZEN_KV_MTP": make_assistant}


@pytest.mark.parametrize("algorithm", MAKERS)
def test_an_engine_serves_them(algorithm: str):
    target = make_target(SMALL, torch.float32, "cpu", max_positions=300)
    config = EngineConfig.from_dict(
        {
            "context_length": 128,
            "speculative": {"algorithm": algorithm, "num_steps": 3},
            "memory": {"num_slots": 1024},
        }
    )
    speculating = Engine(config, Models(target, MAKERS[algorithm](target)))
    request = speculating.add_request("a", IDS[:20].tolist(), SamplingParams(max_new_tokens=24))
    while speculating.has_work:
        speculating.step()
    assert len(request.output_ids) == 24
    assert 1.5 < sum(request.accept_lengths) / len(request.accept_lengths) < 4
