"""Configs of heads: the dense reference and the engine must understand the same file in the same way."""

from __future__ import annotations

import pytest

from specdebug.engine.model.config import Eagle3Options
from specdebug.reference import ModelConfig

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


def test_without_a_list_the_layers_follow_from_the_targets_depth() -> None:
    assert ModelConfig.from_dict(HEAD).aux_layers is None
    assert Eagle3Options.from_dict(HEAD, "config.json").aux_layers_for(12, "config.json") == (2, 6, 9)
    target = ModelConfig.from_dict({**HEAD, "num_hidden_layers": 12})
    assert target.default_aux_layers() == (2, 6, 9)
