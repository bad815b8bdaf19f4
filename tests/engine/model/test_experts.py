"""Routed experts, against transformers' module."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.model.deepseek_config import ExpertsConfig
from specdebug.engine.model.experts import RoutedExperts
from specdebug.engine.model.layers import Norm
from tests.tolerance import rounding

SIZE, INNER, COUNT, SHARED = 24, 10, 8, 2
CONFIG = ExpertsConfig(COUNT, 3, 4, 2, INNER, SHARED, 2.5, True)
NEAR = rounding(SIZE, SIZE, INNER, 3, SHARED * INNER, size=4.0)


@pytest.fixture
def theirs():
    pytest.importorskip("transformers")
    from transformers.models.deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    torch.manual_seed(3)
    config = DeepseekV3Config(
        hidden_size=SIZE, moe_intermediate_size=INNER, n_routed_experts=COUNT, n_shared_experts=SHARED, n_group=4,
        topk_group=2, num_experts_per_tok=3, routed_scaling_factor=2.5,
    )  # fmt: skip
    module = DeepseekV3MoE(config).eval()
    with torch.no_grad():
        for tensor in [*module.parameters(), module.gate.e_score_correction_bias]:
            tensor.normal_(0, 0.3)
    return module


@pytest.fixture
def ours(theirs):
    experts, shared = theirs.experts, theirs.shared_experts
    halves = torch.cat((shared.gate_proj.weight, shared.up_proj.weight)).detach().view(2, SHARED, INNER, SIZE)
    every_gate_up = halves.transpose(0, 1).flatten(1, 2).transpose(1, 2)
    every_down = shared.down_proj.weight.detach().t().reshape(SHARED, INNER, SIZE)
    return RoutedExperts(
        config=CONFIG,
        norm=Norm(torch.ones(SIZE), 1e-6),
        router=theirs.gate.weight.detach().t().contiguous(),
        bias=theirs.gate.e_score_correction_bias,
        gate_up=torch.cat((experts.gate_up_proj.detach().transpose(1, 2), every_gate_up)).contiguous(),
        down=torch.cat((experts.down_proj.detach().transpose(1, 2), every_down)).contiguous(),
    )


def drawn(rows: int) -> torch.Tensor:
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(8))


@pytest.mark.parametrize("rows", [0, 1, 5, 130])
def test_the_sum_of_the_experts_is_added_to_the_input(ours, theirs, rows):
    x = drawn(rows)
    with torch.no_grad():
        expected = x + theirs(ours.norm.with_gain(x).unsqueeze(0))[0] if rows else x
        found = ours(x.clone())
    torch.testing.assert_close(found, expected, **NEAR)


def test_the_bias_decides_who_is_chosen_and_not_by_what_weight(ours, theirs):
    normed = drawn(40)
    chosen, weights = ours.route(normed)
    assert chosen[:, 3:].tolist() == [[COUNT, COUNT + 1]] * 40
    assert bool((weights[:, 3:] == 1).all())
    chosen, weights = chosen[:, :3], weights[:, :3]
    with torch.no_grad():
        _, their_weights, their_choice = theirs.gate(normed)
    order, their_order = chosen.sort(1).indices, their_choice.sort(1).indices
    assert torch.equal(chosen.gather(1, order), their_choice.gather(1, their_order))
    torch.testing.assert_close(weights.gather(1, order), their_weights.gather(1, their_order), **NEAR)
    scores = (normed @ ours.router).sigmoid()
    assert not torch.equal(chosen.sort(1).values, scores.topk(3).indices.sort(1).values), (
        "the bias changes nothing here"
    )
