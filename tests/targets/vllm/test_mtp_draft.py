"""A target with a next-n layer in MiMo's layout: what it computed it computes still, and the layer is fitted to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import rms_norm

from specdebug.base.errors import CheckpointError
from specdebug.reference.config import ModelConfig
from specdebug.targets.installed import config_of
from specdebug.targets.vllm import mtp_draft
from specdebug.targets.vllm.mtp_draft import fitted, with_layer

CONFIG = ModelConfig(
    hidden_size=128, intermediate_size=32, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=64, vocab_size=16
)
ROWS, LENGTH = 40, 24


def test_it_foresees_what_follows_linearly_from_state_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = torch.Generator().manual_seed(3)
    weights = {
        "model.norm.weight": torch.rand(128, generator=draws) + 0.5,
        "model.embed_tokens.weight": torch.randn(16, 128, generator=draws),
        "model.layers.0.self_attn.q_proj.weight": torch.randn(128, 128, generator=draws),
    }
    ids = torch.randint(16, (ROWS, LENGTH), generator=draws)
    turn = torch.linalg.qr(torch.randn(128, 128, generator=draws))[0]
    tokens = rms_norm(weights["model.embed_tokens.weight"], (128,))[ids]
    states = [torch.randn(ROWS, 128, generator=draws)]
    for at in range(1, LENGTH):
        states.append(rms_norm(states[-1], (128,)) @ turn + tokens[:, at])
    last = torch.stack(states, 1)
    monkeypatch.setattr(mtp_draft, "written_text", lambda *_: (ids, last, last * weights["model.norm.weight"]))
    made = fitted(weights, CONFIG)
    layer = "model.mtp_layers.0"
    read = torch.cat((rms_norm(last * weights["model.norm.weight"], (128,)), tokens.roll(-1, 1)), -1)[:, :-1]
    missed = read @ made[f"{layer}.input_proj.weight"].T - last[:, 1:]
    assert missed.norm() < 0.5 * last[:, 1:].norm()
    assert made[f"{layer}.self_attn.o_proj.weight"].shape == (128, 2 * 64)
    assert made["model.layers.0.self_attn.q_proj.bias"].abs().max() == 0
    assert torch.equal(made["lm_head.weight"], weights["model.embed_tokens.weight"])


def test_each_head_sees_one_position_before() -> None:
    """The queries and keys that are made, rotated, are the largest for each other at the head's own distance."""
    weights = {"model.norm.weight": torch.ones(128), "model.embed_tokens.weight": torch.eye(16, 128)}
    ids = torch.zeros(2, 8, dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mtp_draft, "written_text", lambda *_: (ids, torch.ones(2, 8, 128), torch.ones(2, 8, 128)))
        made = fitted(weights, CONFIG)
    attention = "model.mtp_layers.0.self_attn"
    query, key = made[f"{attention}.q_proj.bias"].view(2, 2, 32), made[f"{attention}.k_proj.bias"].view(2, 32)
    back = torch.arange(8).unsqueeze(1) * CONFIG.rope_theta ** (torch.arange(32) * (-1.0 / 32))
    cosine, sine = torch.cos(back), torch.sin(back)
    turned = torch.stack((key[0] * cosine + key[1] * sine, key[1] * cosine - key[0] * sine), 1)  # [8, 2, 32]
    scores = torch.einsum("htd,btd->hb", query, turned) / 64**0.5
    assert scores.argmax(1).tolist() == [1, 2]
    assert (scores.softmax(1).max(1).values > 0.99).all()


def test_a_layer_of_another_target_and_a_target_that_the_fit_is_not_for_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="name tiny-mtp-layer, not other-mtp-layer"):
        with_layer("other-mtp-layer", "tiny", tmp_path)
    with pytest.raises(CheckpointError, match="made for a Llama"):
        with_layer("tiny-mla-mtp-layer", "tiny-mla", tmp_path)


def test_the_folder_is_the_target_s_in_mimo_s_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mtp_draft, "fitted", lambda *_: {"x": torch.ones(1)})
    made = with_layer("tiny-mtp-layer", "tiny", tmp_path)
    config = config_of(made)
    assert (config["architectures"], config["num_nextn_predict_layers"]) == (["MiMoForCausalLM"], 1)
    assert (made / "tokenizer.json").exists()
    assert with_layer("tiny-mtp-layer", "tiny", tmp_path) == made
