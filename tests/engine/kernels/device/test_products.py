"""Products of a few rows on the device, head by head, for latent attention and with experts, against float64."""

from dataclasses import replace

import pytest
import torch

from specdebug.engine.model.deepseek_config import ExpertsConfig
from specdebug.engine.model.latent import RoutedExperts
from specdebug.engine.model.layers import Norm
from specdebug.engine.model.rope import LatentRotary
from tests.interpreter import float_types
from tests.tolerance import rounding

pytest.importorskip("triton")

from specdebug.engine.kernels.triton.experts import MAX_ROWS, add_experts, route
from specdebug.engine.kernels.triton.products import TILES, absorb_and_store, head_linear, skinny_gemm

CPU = torch.device("cpu")
EPS = 1e-6
of_floats = pytest.mark.parametrize("dtype", float_types(), ids=str)
of_halves = pytest.mark.parametrize("dtype", [dtype for dtype in float_types() if dtype is not torch.float32], ids=str)

# --- with a large matrix ---


def operands(device, dtype, rows, size_in, size_out):
    torch.manual_seed(rows)
    x = torch.randn(rows, size_in).to(device, dtype)
    weight = (torch.randn(size_out, size_in) / size_in**0.5).to(device, dtype)
    return x, weight.t()


@of_halves
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES.keys())
@pytest.mark.parametrize("rows", [1, 6, 16])
@pytest.mark.parametrize(("size_in", "size_out"), [(512, 128), (300, 70), (24, 5), (1024, 130)])
def test_products_come_out_as_in_float64(device, dtype, tile, rows, size_in, size_out):
    x, weight = operands(device, dtype, rows, size_in, size_out)
    out = skinny_gemm(x, weight, tile=tile)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), x.double() @ weight.double(), **rounding(size_in, dtype=dtype))


@of_halves
def test_a_residual_is_added_before_rounding_and_may_be_the_result(device, dtype):
    x, weight = operands(device, dtype, 3, 256, 100)
    base = torch.randn(3, 100).to(device, dtype)
    expected = base.double() + x.double() @ weight.double()
    apart = skinny_gemm(x, weight, base=base)
    torch.testing.assert_close(apart.double(), expected, **rounding(257, dtype=dtype))
    assert skinny_gemm(x, weight, base=base, out=base) is base
    assert torch.equal(base, apart)


def test_slices_are_read_and_written_where_they_lie(device):
    """As an EAGLE head's fc is: half of the inputs of a wider matrix."""
    x, weight = operands(device, torch.float16, 2, 128, 40)
    wide, before = torch.zeros(2, 60, dtype=torch.float16, device=device), x.clone()
    skinny_gemm(x[:, 64:], weight[64:], out=wide[:, 10:50])
    expected = x[:, 64:].double() @ weight[64:].double()
    torch.testing.assert_close(wide[:, 10:50].double(), expected, **rounding(64, dtype=x.dtype))
    assert not bool(wide[:, :10].any() or wide[:, 50:].any())
    assert torch.equal(x, before)


# --- head by head, and before latent attention ---


@of_floats
@pytest.mark.parametrize("rows", [0, 1, 5, 70])
@pytest.mark.parametrize(("size_in", "size_out"), [(24, 130), (130, 24), (16, 16)])
@pytest.mark.parametrize("turned", [False, True])
def test_each_head_is_multiplied_where_it_lies(device, dtype, rows, size_in, size_out, turned):
    torch.manual_seed(2)
    heads = 3
    wide = torch.randn(rows, heads, size_in + 6).to(dtype)
    weight = (torch.randn(heads, size_in, size_out) / size_in**0.5).to(dtype)
    expected = torch.einsum("nhi,hio->nho", wide[..., :size_in].double(), weight.double())
    there = inputs_adjacent(weight, device, dtype) if turned else weight.to(device)
    out = torch.zeros(rows, heads, size_out + 4, dtype=dtype, device=device)
    found = head_linear(wide.to(device)[..., :size_in], there, out[..., :size_out])
    torch.testing.assert_close(found.double().cpu(), expected, **rounding(size_in, dtype=dtype, size=4.0))
    assert not bool(out[..., size_out:].any())


@of_floats
@pytest.mark.parametrize(("heads", "latent", "part"), [(4, 32, 8), (1, 16, 2), (16, 64, 32), (9, 24, 6)])
@pytest.mark.parametrize("slots", [[], [3], [7, 0, 4]], ids=str)
def test_rows_are_normed_turned_and_stored_and_queries_absorbed_and_turned(device, dtype, heads, latent, part, slots):
    torch.manual_seed(0)
    count, width, nope = len(slots), latent + part, 5
    rotary = LatentRotary(part, 100.0, 50, CPU)
    gain = torch.rand(latent).to(dtype) + 0.5
    up = (torch.randn(heads, nope, latent) / nope**0.5).to(dtype)
    projected = torch.randn(count, heads * (nope + part) + width).to(dtype)
    positions = torch.arange(count) * 7
    absorbed, pool = torch.randn(count, heads, width).to(dtype), torch.randn(9, 1, width).to(dtype)

    def slices(wide):
        """Queries and rows, as a model has them."""
        return wide[:, :-width].view(count, heads, nope + part), wide[:, -width:]

    (queries, row), phases = slices(projected), rotary.at(positions)
    product = torch.einsum("nhd,hdc->nhc", queries[..., :nope].double(), up.double()).to(dtype)
    expected_absorbed = torch.cat((product, rotary.turn(queries[..., nope:], phases)), -1)
    expected_pool = pool.clone()
    normed = Norm(gain, EPS).with_gain(row[:, :latent])
    expected_pool[slots] = torch.cat((normed, rotary.turn(row[:, latent:], phases)), 1).unsqueeze(1)

    queries, row = slices(projected.to(device))
    where = torch.tensor([[slot, 8] for slot in slots], dtype=torch.int64, device=device).reshape(-1, 2)[:, 0]
    rest = [each.to(device) for each in (positions, rotary.flat_table, gain)]
    there = [each.to(device) for each in (absorbed, pool)]
    absorb_and_store(queries, up.to(device), row, *rest, EPS, *there, where)
    near = rounding(latent, dtype=dtype, size=4.0, roundings=2)
    torch.testing.assert_close(there[0].cpu(), expected_absorbed, **near)
    torch.testing.assert_close(there[1].cpu(), expected_pool, **near)
    untouched = torch.ones(9, dtype=torch.bool)
    untouched[slots] = False
    assert torch.equal(there[1].cpu()[untouched], pool[untouched])


# --- experts ---

SIZE, INNER = 40, 72
CONFIG = ExpertsConfig(8, 3, 4, 2, INNER, 2, 2.5, True)


def made(config: ExpertsConfig) -> RoutedExperts:
    torch.manual_seed(1)
    count = config.count + config.shared
    return RoutedExperts(
        config=config,
        norm=Norm(torch.ones(SIZE), EPS),
        router=torch.randn(SIZE, config.count) / SIZE**0.5,
        bias=torch.randn(config.count) * 0.1,
        gate_up=torch.randn(count, SIZE, 2 * INNER) / SIZE**0.5,
        down=torch.randn(count, INNER, SIZE) / INNER**0.5,
    )


def inputs_adjacent(weights: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return weights.transpose(-1, -2).to(device, dtype).contiguous().transpose(-1, -2)


@of_floats
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


def test_what_no_token_chose_is_not_read(device):
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
    there = (normed.to(device), inputs_adjacent(experts.router, device, torch.float32), experts.bias.to(device))
    found, factors = route(*there, config)
    assert found.dtype == chosen.dtype
    assert torch.equal(found.cpu(), chosen)
    torch.testing.assert_close(factors.cpu(), weights, **rounding(SIZE, size=4.0, times=4))


def test_scores_without_an_order_still_choose_experts(device):
    experts = made(CONFIG)
    normed = torch.full((2, SIZE), torch.nan, device=device)
    chosen, factors = route(
        normed, inputs_adjacent(experts.router, device, torch.float32), experts.bias.to(device), CONFIG
    )
    assert bool(((chosen >= 0) & (chosen < 10)).all())
    assert bool(factors[:, :3].isnan().all())


def test_what_the_kernels_cannot_read_is_refused(device):
    x, weight = operands(device, torch.float16, 17, 32, 8)
    by_head = torch.zeros(2, 3, 4, device=device)
    experts, normed = made(CONFIG), torch.randn(2, SIZE, device=device)
    chosen, factors = torch.zeros(2, 3, dtype=torch.int64, device=device), torch.ones(2, 3, device=device)
    weights = [each.to(device) for each in (experts.gate_up, experts.down, experts.router, experts.bias)]
    row, queries, up = (torch.ones(shape, device=device) for shape in ((1, 6), (1, 1, 5), (1, 3, 4)))
    table, gain = LatentRotary(2, 100.0, 4, CPU).flat_table.to(device), torch.ones(4, device=device)
    at, pool = torch.zeros(1, dtype=torch.int64, device=device), row.view(1, 1, 6)
    wide, turned = torch.ones(1, 12, device=device)[:, ::2], table.t().contiguous().t()
    for refused, problem in (
        (lambda: skinny_gemm(x, weight), "at most 16 rows"),
        (lambda: skinny_gemm(x[:2].float(), weight.float()), "of bf16 or fp16"),
        (lambda: skinny_gemm(x[:2], weight.contiguous()), "adjacent along in"),
        (
            lambda: head_linear(by_head, by_head[:, :, :1], by_head.transpose(1, 2)),
            "elements of a head must be adjacent",
        ),
        (lambda: absorb_and_store(queries, up, wide, at, table, gain, EPS, pool, pool, at), "must be adjacent"),
        (lambda: absorb_and_store(queries, up, row, at, turned, gain, EPS, pool, pool, at), "must be adjacent"),
        (lambda: add_experts(normed, normed, *weights[:2], chosen, factors), "inputs of a weight, must be adjacent"),
        (lambda: route(normed, *weights[2:], CONFIG), "router's inputs must be adjacent"),
    ):
        with pytest.raises(ValueError, match=problem):
            refused()
