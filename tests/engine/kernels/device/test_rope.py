"""Rotation on the device against the textbook in float64, and against the CPU's complex product."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.kernels.kv_cache import KVDestination, write_kv
from specdebug.engine.model.config import LlamaConfig
from specdebug.engine.model.rope import Rotary
from tests.interpreter import float_types

pytest.importorskip("triton")

from specdebug.engine.kernels.triton.rope import rotate, rotate_and_store
from tests.tolerance import rounding


def config(num_heads: int, num_kv_heads: int, head_dim: int) -> LlamaConfig:
    shape = {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads, "head_dim": head_dim}
    rest = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 5, "rope_theta": 100.0}
    return LlamaConfig.from_dict(shape | rest, "config.json")


def flat_table(rotary: Rotary, device: torch.device) -> torch.Tensor:
    return torch.view_as_real(rotary.table).flatten(1).to(device)


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 8), (1, 1, 2), (32, 8, 128), (9, 3, 24)])
def test_queries_and_keys_turn_and_values_do_not(device, dtype, heads, kv_heads, dim):
    torch.manual_seed(0)
    rotary = Rotary(config(heads, kv_heads, dim), 50, torch.device("cpu"))
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
    rotate(turned, positions.to(device), flat_table(rotary, device), heads + kv_heads, dim)
    # the table holds float32 angles: at position 49 they are off by 49 units in the last place, and values reach 4
    near = rounding(2, 49**2, dtype=dtype, size=4.0)
    torch.testing.assert_close(turned.double().cpu().view_as(expected), expected, **near)
    assert torch.equal(turned.cpu()[:, (heads + kv_heads) * dim :], qkv[:, (heads + kv_heads) * dim :])


@settings(max_examples=20)
@given(
    group=st.integers(1, 5),
    kv_heads=st.integers(1, 4),
    dim=st.sampled_from([2, 6, 16, 64]),
    positions=st.lists(st.integers(0, 29), min_size=0, max_size=4),
    seed=st.integers(0, 99),
)
def test_agrees_with_the_complex_product(device, group, kv_heads, dim, positions, seed):
    rotary = Rotary(config(group * kv_heads, kv_heads, dim), 30, torch.device("cpu"))
    at = torch.tensor(positions, dtype=torch.int64)
    qkv = torch.randn(len(positions), (group + 2) * kv_heads * dim, generator=torch.Generator().manual_seed(seed))
    turned = qkv.to(device)
    rotate(turned, at.to(device), flat_table(rotary, device), (group + 1) * kv_heads, dim)
    expected = torch.cat(rotary.split(qkv, rotary.at(at)), 1).view_as(qkv)
    torch.testing.assert_close(turned.cpu(), expected, **rounding(2, size=4.0))


def test_only_the_rows_own_heads_are_written(device):
    """Rows of a wider tensor: what lies beside and between them stays, bit for bit."""
    wide = torch.randn(5, 100, device=device)
    before = wide.clone()
    rotary = Rotary(config(3, 1, 8), 10, torch.device("cpu"))
    rotate(wide[1:4, 20:60], torch.tensor([1, 2, 3], device=device), flat_table(rotary, device), 4, 8)
    changed = wide != before
    assert bool(changed[1:4, 20:52].any())
    changed[1:4, 20:52] = False
    assert not bool(changed.any())


def test_strided_elements_are_refused(device):
    rotary = Rotary(config(1, 1, 2), 4, torch.device("cpu"))
    with pytest.raises(ValueError, match="must be adjacent"):
        rotate(
            torch.ones(6, 1, device=device).t()[:, ::2],
            torch.zeros(1, dtype=torch.int64, device=device),
            flat_table(rotary, device),
            1,
            2,
        )


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 8), (1, 1, 2), (32, 8, 128), (9, 3, 24)])
@pytest.mark.parametrize("slots", [[], [3], [7, 0, 4]], ids=str)
def test_keys_and_values_may_go_straight_to_their_cache(device, dtype, heads, kv_heads, dim, slots):
    """The same as turning and writing in two steps, bit for bit, into a cache of its own dtype."""
    torch.manual_seed(0)
    table = flat_table(Rotary(config(heads, kv_heads, dim), 50, torch.device("cpu")), device)
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


def test_caches_that_it_would_not_fill_are_refused(device):
    table = flat_table(Rotary(config(1, 1, 2), 4, torch.device("cpu")), device)
    pool = torch.zeros(2, 3, 1, 4, device=device)
    slots = torch.zeros(1, dtype=torch.int64, device=device)
    for k, v in ((pool[0, ..., ::2], pool[1, ..., ::2]), (pool[0, ..., :2], torch.zeros(3, 1, 2, device=device))):
        with pytest.raises(ValueError, match="laid out alike"):
            rotate_and_store(torch.ones(1, 6, device=device), slots, table, 2, 2, KVDestination(k, v, slots))
