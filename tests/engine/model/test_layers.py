"""Products, rotation, a head's first layer and routed experts on a CPU, each against its definition."""

import pytest
import torch

from specdebug.engine.model.config import LlamaConfig
from specdebug.engine.model.deepseek_config import ExpertsConfig
from specdebug.engine.model.latent import RoutedExperts
from specdebug.engine.model.layers import Norm, as_weight, empty_weight, linear, linear_into
from specdebug.engine.model.models import NormedPair, TokenShare
from specdebug.engine.model.rope import Rotary, interleave_pairs, separate_pairs
from tests.tolerance import rounding

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")

# --- products ---


def test_a_cpu_stores_inputs_first_and_other_devices_outputs_first():
    for make in (
        lambda device: empty_weight(3, 5, torch.float32, device),
        lambda device: as_weight(torch.empty(5, 3, device=device)),
        lambda device: empty_weight(3, 5, torch.float32, device, 2)[1],
    ):
        here, there = make(CPU), make(ELSEWHERE)
        assert here.shape == there.shape == (3, 5)
        assert (here.stride(), there.stride()) == ((5, 1), (1, 3))


@pytest.mark.parametrize("with_bias", [True, False])
def test_a_product_leaves_its_operands_alone_and_a_sum_takes_the_place_of_its_addend(with_bias):
    x, weight, bias = torch.randn(2, 3), torch.randn(3, 5), torch.randn(5) if with_bias else None
    kept = [None if value is None else value.clone() for value in (x, weight, bias)]
    out = linear(x, weight, bias)
    torch.testing.assert_close(out, x @ weight + (0 if bias is None else bias))
    for value, before in zip((x, weight, bias), kept, strict=True):
        assert value is before is None or torch.equal(value, before)
    base = torch.randn(2, 5)
    expected = torch.addmm(base, x, weight)
    assert linear_into(base, x, weight) is base
    assert torch.equal(base, expected)


# --- rotation ---

SMALL = {"hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 5, "rope_theta": 100.0}
ROTARY = Rotary(
    LlamaConfig.from_dict(SMALL | {"num_attention_heads": 4, "num_key_value_heads": 2}, "config.json"), 20, CPU
)


def test_interleaving_makes_rotated_pairs_adjacent_within_each_head_and_can_be_undone():
    rows = torch.arange(16)
    assert interleave_pairs(rows, 8).tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    matrix = rows[:, None] * torch.ones(3)
    assert torch.equal(interleave_pairs(matrix, 8)[:, 2], interleave_pairs(rows, 8).float())
    keys = torch.randn(3, 5, 16)
    assert torch.equal(separate_pairs(interleave_pairs(keys.reshape(-1), 16).view_as(keys)), keys)


def test_queries_and_keys_turn_and_values_do_not():
    qkv = torch.randn(3, 8 * 8)  # 4 + 2 + 2 heads of 8, pairs adjacent
    positions = torch.tensor([0, 7, 19])
    q, k, v = ROTARY.split(qkv.clone(), ROTARY.at(positions))
    assert (q.shape, k.shape, v.shape) == ((3, 4, 8), (3, 2, 8), (3, 2, 8))
    before = qkv.view(3, 8, 8)
    assert torch.equal(v, before[:, 6:])
    turned = torch.cat((q, k), 1)
    for row, position in enumerate(positions.tolist()):
        for pair in range(4):
            angle = torch.tensor(position * 100.0 ** (-pair / 4))
            a, b = before[row, :6, 2 * pair], before[row, :6, 2 * pair + 1]
            torch.testing.assert_close(turned[row, :, 2 * pair], a * angle.cos() - b * angle.sin())
            torch.testing.assert_close(turned[row, :, 2 * pair + 1], a * angle.sin() + b * angle.cos())


def test_low_precision_is_rotated_in_float32():
    qkv, phases = torch.randn(2, 64).bfloat16(), ROTARY.at(torch.tensor([3, 11]))
    for ours, exact in zip(ROTARY.split(qkv.clone(), phases), ROTARY.split(qkv.float(), phases), strict=True):
        assert ours.dtype == torch.bfloat16
        assert torch.equal(ours, exact.bfloat16())


# --- a head's first layer ---


@pytest.mark.parametrize("bad", [-1, 20])
@pytest.mark.usefixtures("tables")
def test_an_id_outside_the_vocabulary_raises(bad):
    share = TokenShare(torch.zeros(20, 8), None, torch.zeros(8, 5), None)
    with pytest.raises(IndexError, match="out of range"):
        share(torch.tensor([bad]))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)], ids=str)
@pytest.mark.usefixtures("tables")
def test_a_normed_pair_is_the_product_of_both_norms_side_by_side(dtype, relative, device):
    generator = torch.Generator().manual_seed(0)
    embedding, hidden = (torch.randn(rows, 16, generator=generator).to(dtype) for rows in (20, 4))
    gains = [torch.rand(16, generator=generator).to(dtype) + 0.5 for _ in range(2)]
    stored = torch.randn(24, 32, generator=generator).to(dtype)  # as a checkpoint holds it: [out, in]
    ids = torch.tensor([3, 0, 19, 3])

    norms = [Norm(gain.to(device), 1e-5) for gain in gains]
    weight = as_weight(stored.to(device)).clone(memory_format=torch.preserve_format)  # gains may be folded into it
    found = NormedPair(embedding.to(device), *norms, weight)(ids.to(device), hidden.to(device))

    rows = zip([embedding[ids].double(), hidden.double()], gains, strict=True)
    normed = [x * (x.square().mean(1, True) + 1e-5).rsqrt() * gain.double() for x, gain in rows]
    expected = torch.cat(normed, 1) @ stored.double().T
    assert found.dtype == dtype
    assert float((found.cpu().double() - expected).norm() / expected.norm()) < relative


# --- routed experts ---

SIZE, INNER, COUNT, SHARED = 24, 10, 8, 2
NEAR = rounding(SIZE, SIZE, INNER, 3, SHARED * INNER, size=4.0)


@pytest.fixture
def theirs():
    pytest.importorskip("transformers")
    from transformers.models.deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    torch.manual_seed(3)
    sizes = {"hidden_size": SIZE, "moe_intermediate_size": INNER, "n_routed_experts": COUNT, "n_shared_experts": SHARED}
    choice = {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "routed_scaling_factor": 2.5}
    module = DeepseekV3MoE(DeepseekV3Config(**sizes, **choice)).eval()
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
        config=ExpertsConfig(COUNT, 3, 4, 2, INNER, SHARED, 2.5, True),
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
    unbiased = (normed @ ours.router).sigmoid().topk(3).indices
    assert not torch.equal(chosen.sort(1).values, unbiased.sort(1).values), "the bias changes nothing here"
