"""The target against transformers, its config, and which tokens sampling keeps."""

from pathlib import Path
from typing import Any

import pytest
import torch

from specdebug.engine.model.config import Eagle3Options
from specdebug.engine.textbook.request import SamplingParams
from specdebug.engine.textbook.sampler import target_probs
from specdebug.reference.config import ModelConfig
from specdebug.reference.sampling import kept_probs, may_be_kept
from specdebug.reference.target import DenseCache, greedy_generate, target_forward
from specdebug.reference.weights import load_weights
from tests.tolerance import layers_rounding

HEAD = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 24,
    "draft_vocab_size": 18,
}


@pytest.mark.parametrize(("named", "inputs"), [([1, 5, 8], (2, 6, 9)), ([2, 5, 8], (2, 5, 8)), ([0, 1, 9], (0, 1, 9))])
def test_auxiliary_layers_are_outputs_if_the_list_starts_with_one_and_inputs_if_not(
    named: list[int], inputs: tuple[int, ...]
) -> None:
    raw = {**HEAD, "eagle_config": {"eagle_aux_hidden_state_layer_ids": named}}
    assert ModelConfig.from_dict(raw).aux_layers == inputs
    assert Eagle3Options.from_dict(raw, "config.json").aux_layers_for(12, "config.json") == inputs


CUTS = [(1.0, 0, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.6), (0.9, 8, 0.5), (1.1, 1, 0.9)]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), CUTS)
def test_it_is_the_engine_s_distribution(temperature: float, top_k: int, top_p: float) -> None:
    logits = 3 * torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    logits[3, 5:9] = logits[3].max()  # equals
    ours = target_probs(logits, SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p))
    probs, tokens = kept_probs(logits, temperature, top_k, top_p)
    torch.testing.assert_close(ours.gather(-1, tokens).double(), probs, atol=1e-6, rtol=1e-5)
    everything = torch.arange(64).expand(20, 64)
    for row in range(20):
        kept = may_be_kept(
            logits[row].expand(64, 64), everything[row], torch.full((64,), 1e-4), temperature, top_k, top_p
        )
        assert torch.equal(kept, ours[row] > 0)


def test_what_lies_at_the_border_may_be_kept_by_rounding_and_what_lies_beyond_may_not() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.999, 0.9]]).expand(4, 4)
    tokens = torch.arange(4)
    assert may_be_kept(logits, tokens, torch.full((4,), 0.01), 1.0, 2, 1.0).tolist() == [True, True, True, False]
    assert may_be_kept(logits, tokens, torch.full((4,), 0.0001), 1.0, 2, 1.0).tolist() == [True, True, False, False]
    before = float(torch.softmax(logits[0].double(), -1)[:2].sum())
    for top_p, kept in ((before + 0.01, True), (before - 0.0005, True), (before - 0.3, False)):
        assert may_be_kept(logits, tokens, torch.full((4,), 0.01), 1.0, 0, top_p).tolist()[2] is kept


def test_min_p_is_a_part_of_the_likeliest_token_s_probability() -> None:
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
    probs, tokens = kept_probs(logits, 1.0, 0, 1.0, 0.6)
    torch.testing.assert_close(probs, torch.tensor([[4 / 7, 3 / 7, 0, 0]], dtype=torch.float64))
    for temperature, kept in ((1.0, [True, True, False, False]), (2.0, [True, True, True, False])):
        cut = (temperature, 0, 1.0, 0.6)
        assert may_be_kept(logits.expand(4, 4), tokens[0], torch.full((4,), 1e-4), *cut).tolist() == kept
        assert (kept_probs(logits, *cut)[0][0] > 0).tolist() == kept


def test_cut_jointly_top_p_is_of_the_whole_distribution() -> None:
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
    one_by_one, tokens = kept_probs(logits, 1.0, 2, 0.5)  # of 0.57 and 0.43 the first is enough
    assert one_by_one.tolist() == [[1.0, 0.0, 0.0, 0.0]]
    jointly, _ = kept_probs(logits, 1.0, 2, 0.5, joint=True)
    torch.testing.assert_close(jointly, torch.tensor([[4 / 7, 3 / 7, 0, 0]], dtype=torch.float64))
    margins, each = torch.full((4,), 1e-4), logits.expand(4, 4)
    assert may_be_kept(each, tokens[0], margins, 1.0, 2, 0.5).tolist() == [True, False, False, False]
    assert may_be_kept(each, tokens[0], margins, 1.0, 2, 0.5, joint=True).tolist() == [True, True, False, False]


transformers = pytest.importorskip("transformers")

SHAPE = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 8,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 500.0,
}  # fmt: skip
LLAMAS: dict[str, Any] = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "llama3": {"rope_parameters": LLAMA3},
    "wide_heads": {"head_dim": 16, "rms_norm_eps": 1e-3},
}

LATENT = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256,
    "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "first_k_dense_replace": 6, "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {
    "first_k_dense_replace": 1, "moe_intermediate_size": 24, "n_routed_experts": 8, "n_shared_experts": 2,
    "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
}  # fmt: skip
DEEPSEEKS: dict[str, Any] = {
    "dense": {},
    "tied_latent": {"tie_word_embeddings": True},
    "whole_queries": {"q_lora_rank": None},
    "halves": {"rope_interleave": False},
    "experts": EXPERTS,
    "unnormed_experts": {**EXPERTS, "norm_topk_prob": False, "n_shared_experts": 1},
}
NEAR = layers_rounding({**SHAPE, "intermediate_size": 160}, 70)


@pytest.fixture(params=[*LLAMAS, *DEEPSEEKS])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path):
    torch.manual_seed(0)
    if request.param in LLAMAS:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, **LLAMAS[request.param])).eval()
    else:
        config = transformers.DeepseekV3Config(**{**LATENT, **DEEPSEEKS[request.param]})
        model = transformers.DeepseekV3ForCausalLM(config).eval()
    with torch.no_grad():
        for w in model.parameters():  # large enough that attention is far from uniform
            w.add_(torch.randn_like(w) * 0.2)
        for name, bias in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                bias.copy_(torch.randn_like(bias) * 0.3)
    model.save_pretrained(tmp_path)
    return model, tmp_path


def test_logits_hidden_and_aux_equal_transformers(checkpoint) -> None:
    model, path = checkpoint
    weights, config = load_weights(path)
    ids = torch.randint(97, (2, 70), generator=torch.Generator().manual_seed(1))
    logits, hidden, aux = target_forward(weights, config, ids)
    with torch.no_grad():
        expected = model(ids, output_hidden_states=True)
    torch.testing.assert_close(logits, expected.logits, **NEAR)
    torch.testing.assert_close(hidden, expected.hidden_states[-1], **NEAR)
    if config.num_layers == SHAPE["num_hidden_layers"]:
        told, chosen = (2, 4, 5), (1, 3, 7)
    else:
        told, chosen = (2, 3), (1, 4)
    torch.testing.assert_close(aux, torch.cat([expected.hidden_states[i] for i in told], dim=-1), **NEAR)
    found = target_forward(weights, config, ids, aux_layers=chosen)[2]
    torch.testing.assert_close(found, torch.cat([expected.hidden_states[i] for i in chosen], dim=-1), **NEAR)


def test_cached_passes_equal_one_pass(checkpoint) -> None:
    _, path = checkpoint
    weights, config = load_weights(path)
    ids = torch.randint(97, (40,), generator=torch.Generator().manual_seed(2))
    whole, _, _ = target_forward(weights, config, ids)
    cache = DenseCache(config, 40)
    parts = [target_forward(weights, config, part, cache=cache)[0] for part in ids.split([17, 1, 12, 10])]
    torch.testing.assert_close(torch.cat(parts), whole, **NEAR)


def test_greedy_output_equals_generate(checkpoint) -> None:
    model, path = checkpoint
    weights, config = load_weights(path)
    ids = torch.randint(1, 97, (1, 9), generator=torch.Generator().manual_seed(3))
    out = greedy_generate(weights, config, ids, 20)
    expected = model.generate(
        ids, max_new_tokens=20, min_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert out.tolist() == expected.tolist()
