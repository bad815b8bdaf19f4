"""Experts and their router on the device, against the CPU's way in float64 and float32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specdebug.engine.model.deepseek_config import ExpertsConfig
from specdebug.engine.model.experts import RoutedExperts
from specdebug.engine.model.layers import Norm
from tests.interpreter import float_types
from tests.tolerance import rounding

pytest.importorskip("triton")

from specdebug.engine.kernels.triton.experts import MAX_ROWS, add_experts
from specdebug.engine.kernels.triton.router import route

SIZE, INNER = 40, 72
CONFIG = ExpertsConfig(8, 3, 4, 2, INNER, 2, 2.5, True)


def made(config: ExpertsConfig) -> RoutedExperts:
    torch.manual_seed(1)
    count = config.count + config.shared
    return RoutedExperts(
        config=config,
        norm=Norm(torch.ones(SIZE), 1e-6),
        router=torch.randn(SIZE, config.count) / SIZE**0.5,
        bias=torch.randn(config.count) * 0.1,
        gate_up=torch.randn(count, SIZE, 2 * INNER) / SIZE**0.5,
        down=torch.randn(count, INNER, SIZE) / INNER**0.5,
    )


def inputs_adjacent(weights: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return weights.transpose(1, 2).to(device, dtype).contiguous().transpose(1, 2)


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize("rows", [0, 1, 2, 5, MAX_ROWS + 6])
def test_results_are_added_by_their_factors(device, dtype, rows):
    """Few tokens are shared out by their choices, more by the experts, the most are sorted by them."""
    experts = made(CONFIG)
    gate_up, down = (weights.to(dtype) for weights in (experts.gate_up, experts.down))
    x, normed = torch.randn(2, rows, SIZE).to(dtype)
    chosen, factors = experts.route(normed.float())
    exact = replace(experts, gate_up=gate_up.double(), down=down.double())
    expected = exact._compute_chosen(x.double(), normed.double(), chosen, factors.double())
    there = [inputs_adjacent(weights, device, dtype) for weights in (gate_up, down)]
    wide = torch.zeros(rows, SIZE + 8, dtype=dtype, device=device)
    wide[:, :SIZE] = x.to(device)
    found = add_experts(wide[:, :SIZE], normed.to(device), *there, chosen.to(device), factors.to(device))
    # what is between the products is rounded three times, and the result once; float32 sums on the way
    allowed = 4 * torch.finfo(dtype).eps + rounding(SIZE, INNER, 5)["atol"]
    assert (found.double().cpu() - expected).norm() <= allowed * expected.norm()
    assert not bool(wide[:, SIZE:].any())


def test_what_no_one_chose_is_not_read(device):
    """NaN in the other experts' weights stays where it is."""
    experts = made(CONFIG)
    normed = torch.randn(2, SIZE)
    chosen = torch.tensor([[0, 3, 9], [3, 5, 9]])
    others = [expert for expert in range(10) if expert not in (0, 3, 5, 9)]
    experts.gate_up[others], experts.down[others] = torch.nan, torch.nan
    expected = experts._compute_chosen(torch.zeros(2, SIZE), normed, chosen, torch.ones(2, 3))
    there = [inputs_adjacent(weights, device, torch.float32) for weights in (experts.gate_up, experts.down)]
    x = torch.zeros(2, SIZE, device=device)
    found = add_experts(x, normed.to(device), *there, chosen.to(device), torch.ones(2, 3, device=device))
    torch.testing.assert_close(found.cpu(), expected, **rounding(SIZE, INNER, 3, size=8.0))


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        ExpertsConfig(8, 3, 1, 1, INNER, 0, 1.0, False),
        ExpertsConfig(18, 4, 3, 2, INNER, 1, 1.5, True),
        ExpertsConfig(64, 6, 1, 1, INNER, 2, 1.0, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_the_choice_is_the_routers(device, config, rows):
    experts = made(config)
    normed = torch.randn(rows, SIZE)
    chosen, weights = experts.route(normed)
    there = (tensor.to(device) for tensor in (normed, experts.router.t().contiguous().t(), experts.bias))
    found, factors = route(*there, config)
    assert found.dtype == chosen.dtype
    assert torch.equal(found.cpu(), chosen)
    torch.testing.assert_close(factors.cpu(), weights, **rounding(SIZE, size=4.0, times=4))


def test_scores_without_an_order_still_choose_experts(device):
    experts = made(CONFIG)
    normed = torch.full((2, SIZE), torch.nan, device=device)
    there = (tensor.to(device) for tensor in (experts.router.t().contiguous().t(), experts.bias))
    chosen, factors = route(normed, *there, CONFIG)
    assert bool(((chosen >= 0) & (chosen < 10)).all())
    assert bool(factors[:, :3].isnan().all())


def test_other_layouts_are_refused(device):
    experts = made(CONFIG)
    normed = torch.randn(2, SIZE, device=device)
    chosen, factors = torch.zeros(2, 3, dtype=torch.int64, device=device), torch.ones(2, 3, device=device)
    with pytest.raises(ValueError, match="inputs of a weight, must be adjacent"):
        add_experts(normed, normed, experts.gate_up.to(device), experts.down.to(device), chosen, factors)
    with pytest.raises(ValueError, match="router's inputs must be adjacent"):
        route(normed, experts.router.to(device), experts.bias.to(device), CONFIG)
