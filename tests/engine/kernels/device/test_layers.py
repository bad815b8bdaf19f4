"""Norms, activation and rotation on the device against float64, and against what transformers computes in low
precision."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specdebug.engine.kernels.kv_cache import KVDestination, write_kv
from specdebug.engine.model.config import LlamaConfig
from specdebug.engine.model.rope import Rotary
from tests.interpreter import float_types
from tests.tolerance import rounding

pytest.importorskip("triton")

from specdebug.engine.kernels.triton.layers import rms_norm, rms_norm_pair, rotate, rotate_and_store, silu_mul

of_floats = pytest.mark.parametrize("dtype", float_types(), ids=str)


def exact(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * gain.double()


@of_floats
@pytest.mark.parametrize(("rows", "width"), [(0, 24), (1, 192), (1, 4096), (5, 1), (5, 24), (5, 4096)])
def test_a_norm_and_a_pair_of_norms_are_as_in_float64(device, dtype, width, rows):
    torch.manual_seed(0)
    x, wide = (torch.randn(rows, width) * 3).to(device, dtype), torch.randn(rows, width + 5).to(device, dtype)
    gain, y_gain = ((torch.rand(width) + 0.5).to(device, dtype) for _ in range(2))
    before, y = wide.clone(), wide[:, 5:]  # read where it lies
    out, other = rms_norm(x, gain, 1e-5), rms_norm(y, y_gain, 0.1)
    assert (out.dtype, out.shape) == (dtype, (rows, width))
    near = rounding(width, dtype=dtype, roundings=2)
    torch.testing.assert_close(out.double(), exact(x, gain, 1e-5), **near)
    torch.testing.assert_close(other.double(), exact(y, y_gain, 0.1), **near)
    assert torch.equal(wide, before)
    assert torch.equal(rms_norm_pair(x, gain, 1e-5, y, y_gain, 0.1), torch.cat([out, other], 1))


def test_low_precision_rounds_where_transformers_does(device):
    """A norm before the gain, an activation between its two steps; rounding once at the end would differ in one element
    of ten."""
    torch.manual_seed(0)
    x, gain = torch.randn(4, 1024).to(device, torch.float16), torch.rand(1024).to(device, torch.float16)
    normed = (x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt()).half()
    gate, up = x.chunk(2, 1)
    for found, wanted in ((rms_norm(x, gain, 1e-5), normed * gain), (silu_mul(x), F.silu(gate.float()).half() * up)):
        assert float((found == wanted).float().mean()) > 0.99


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # numpy's, when interpreted
def test_extreme_values(device):
    """Large and tiny rows do not leave float32, and a NaN stays in its row."""
    x = torch.stack((torch.full((64,), 6e4), torch.full((64,), 1e-6))).to(device, torch.float16)
    gain = torch.ones(64, dtype=torch.float16, device=device)
    out = rms_norm(x, gain, 1e-5)
    assert torch.equal(out[0], gain)
    torch.testing.assert_close(out[1].double(), exact(x, gain, 1e-5)[1], rtol=2e-3, atol=0)
    x = torch.ones(3, 40, device=device)
    x[1, 39] = float("nan")
    assert rms_norm(x, torch.ones(40, device=device), 1e-5).isnan().all(1).tolist() == [False, True, False]
    gate = torch.tensor([-float("inf"), -1e30, -200.0, 0.0, 200.0, 1e30, float("nan")], device=device)
    out = silu_mul(torch.cat((gate, torch.ones_like(gate))).unsqueeze(0))[0]
    assert torch.equal(out.isnan(), F.silu(gate).isnan())
    torch.testing.assert_close(out[1:6], F.silu(gate)[1:6])


@of_floats
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 96), (2, 1024), (6, 1500), (0, 8)])
def test_an_activation_is_as_in_float64(device, dtype, rows, width):
    torch.manual_seed(0)
    gate_up = (torch.randn(rows, 2 * width + 9) * 4).to(device, dtype)[:, 5:-4]  # read where it lies
    gate, up = gate_up.double().chunk(2, 1)
    out = silu_mul(gate_up)
    assert (out.dtype, out.shape) == (dtype, (rows, width))
    # the smallest subnormals of float16 are 6e-8 apart
    near = rounding(8, dtype=dtype, size=16.0, roundings=2)
    torch.testing.assert_close(out.double(), F.silu(gate) * up, **near)


def table_of(heads: int, kv_heads: int, dim: int, positions: int, device: torch.device) -> tuple[Rotary, Tensor]:
    """A rotation on the CPU, and its table on the device."""
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim, "rope_theta": 100.0}
    rest = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 5}
    rotary = Rotary(LlamaConfig.from_dict(shape | rest, "config.json"), positions, torch.device("cpu"))
    return rotary, torch.view_as_real(rotary.table).flatten(1).to(device)


of_shapes = pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 8), (1, 1, 2), (32, 8, 128), (9, 3, 24)])


@of_floats
@of_shapes
def test_queries_and_keys_turn_and_values_do_not(device, dtype, heads, kv_heads, dim):
    torch.manual_seed(0)
    table = table_of(heads, kv_heads, dim, 50, device)[1]
    positions = torch.tensor([0, 7, 49])
    qkv = torch.randn(3, (heads + 2 * kv_heads) * dim).to(dtype)
    expected = qkv.double().view(3, -1, dim // 2, 2).clone()
    for row, position in enumerate(positions.tolist()):
        for pair in range(dim // 2):
            angle = position * 100.0 ** (-2 * pair / dim)
            a, b = expected[row, : heads + kv_heads, pair].clone().unbind(-1)
            expected[row, : heads + kv_heads, pair, 0] = a * math.cos(angle) - b * math.sin(angle)
            expected[row, : heads + kv_heads, pair, 1] = a * math.sin(angle) + b * math.cos(angle)
    turned = qkv.to(device)
    rotate(turned, positions.to(device), table, heads + kv_heads, dim)
    # the table holds float32 angles: at position 49 they are off by 49 units in the last place, and values reach 4
    near = rounding(2, 49**2, dtype=dtype, size=4.0)
    torch.testing.assert_close(turned.double().cpu().view_as(expected), expected, **near)
    assert torch.equal(turned.cpu()[:, (heads + kv_heads) * dim :], qkv[:, (heads + kv_heads) * dim :])


def test_only_the_rows_own_heads_are_turned(device):
    """Rows of a wider tensor: what lies beside and between them stays, bit for bit."""
    wide = torch.randn(5, 100, device=device)
    before = wide.clone()
    rotate(wide[1:4, 20:60], torch.tensor([1, 2, 3], device=device), table_of(3, 1, 8, 10, device)[1], 4, 8)
    changed = wide != before
    assert bool(changed[1:4, 20:52].any())
    changed[1:4, 20:52] = False
    assert not bool(changed.any())


@of_floats
@of_shapes
@pytest.mark.parametrize("slots", [[], [3], [7, 0, 4]], ids=str)
def test_keys_and_values_may_go_straight_to_their_cache(device, dtype, heads, kv_heads, dim, slots):
    """The same as turning and writing in two steps, bit for bit, into a cache of its own dtype."""
    torch.manual_seed(0)
    table = table_of(heads, kv_heads, dim, 50, device)[1]
    qkv = torch.randn(len(slots), (heads + 2 * kv_heads) * dim).to(device, dtype)
    positions = torch.arange(len(slots), device=device) * 7
    pool = torch.randn(2, 9, kv_heads, dim).to(device, torch.float32 if dtype is torch.float16 else dtype)
    where = torch.tensor([[slot, 8] for slot in slots], dtype=torch.int64, device=device).reshape(-1, 2)[:, 0]
    apart, plain = pool.clone(), qkv.clone()
    rotate(plain, positions, table, heads + kv_heads, dim)
    q, k, v = plain.view(-1, heads + 2 * kv_heads, dim).split([heads, kv_heads, kv_heads], 1)
    write_kv(apart[0], apart[1], where, k.to(pool.dtype), v.to(pool.dtype))
    before = qkv.clone()
    rotate_and_store(qkv, positions, table, heads + kv_heads, dim, KVDestination(pool[0], pool[1], where))
    assert torch.equal(pool, apart)
    assert torch.equal(qkv[:, : heads * dim], q.flatten(1))
    assert torch.equal(qkv[:, heads * dim :], before[:, heads * dim :])


def test_other_layouts_are_refused(device):
    x, gain = torch.ones(2, 4, device=device), torch.ones(4, device=device)
    turned = torch.ones(4, 2, device=device).t()
    for other in (torch.ones(3, 4, device=device), x.half()):
        with pytest.raises(ValueError, match="are no pair"):
            rms_norm_pair(x, gain, 1e-5, other, gain, 1e-5)
    table, slots = table_of(1, 1, 2, 4, device)[1], torch.zeros(1, dtype=torch.int64, device=device)
    for refused in (
        lambda: rms_norm_pair(x, gain, 1e-5, turned, gain, 1e-5),
        lambda: rms_norm(turned, gain, 1e-5),
        lambda: silu_mul(turned),
        lambda: rotate(torch.ones(6, 1, device=device).t()[:, ::2], slots, table, 1, 2),
    ):
        with pytest.raises(ValueError, match="must be adjacent"):
            refused()
    pool = torch.zeros(2, 3, 1, 4, device=device)
    for k, v in ((pool[0, ..., ::2], pool[1, ..., ::2]), (pool[0, ..., :2], torch.zeros(3, 1, 2, device=device))):
        with pytest.raises(ValueError, match="laid out alike"):
            rotate_and_store(torch.ones(1, 6, device=device), slots, table, 2, 2, KVDestination(k, v, slots))
