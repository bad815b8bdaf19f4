"""Draft heads as vLLM reads them: what its fc lacks is in the embedding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError
from specdebug.targets.vllm.checkpoints import ARCHITECTURE, draft_folder, with_bias_folded


def test_a_head_whose_fc_has_a_bias_computes_the_same_without_it(tmp_path: Path) -> None:
    made = draft_folder("tiny-eagle", "tiny", tmp_path)
    config = json.loads((made / "config.json").read_text())
    assert (config["architectures"], "bias" in config) == ([ARCHITECTURE], False)
    head = load_file(checkpoint_path("tiny-eagle") / "model.safetensors")
    (file,) = checkpoint_path("tiny").glob("*.safetensors")
    embedding = load_file(file)["model.embed_tokens.weight"].double()
    folded = load_file(made / "model.safetensors")
    assert set(folded) == {*head, "embed_tokens.weight"} - {"fc.bias"}
    hidden = torch.randn(2048, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = head["fc.weight"].double()
    wanted = torch.cat((embedding, hidden), 1) @ weight.T + head["fc.bias"].double()
    got = torch.cat((folded["embed_tokens.weight"].double(), hidden), 1) @ weight.T
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    assert draft_folder("tiny-eagle", "tiny", tmp_path) == made


def test_a_head_that_it_reads_as_it_is_stays_where_it_is(tmp_path: Path) -> None:
    assert draft_folder("tiny-eagle3", "tiny", tmp_path) == checkpoint_path("tiny-eagle3").resolve()
    assert list(tmp_path.iterdir()) == []


def test_weights_without_a_bias_stay_as_they_are() -> None:
    weights = {"fc.weight": torch.eye(2, 4)}
    assert with_bias_folded(weights, torch.ones(3, 2)) == weights


def test_a_bias_that_no_embedding_can_stand_for_is_refused() -> None:
    weights = {"fc.weight": torch.zeros(2, 4), "fc.bias": torch.ones(2)}
    with pytest.raises(CheckpointError, match=r"fc\.bias cannot be folded"):
        with_bias_folded(weights, torch.ones(3, 2))
