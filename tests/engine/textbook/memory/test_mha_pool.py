"""A pool of keys and values: writes, moves, and what released slots hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug import async_probe
from specdebug.engine.memory.arena import FillMode, FillPolicy
from specdebug.engine.textbook.memory.mha_pool import MHAPool

LAYERS, HEADS, DIM = 2, 2, 3


def _pool(num_slots: int = 12, page_size: int = 4, fill: FillMode = "nan") -> MHAPool:
    return MHAPool(
        num_layers=LAYERS,
        num_slots=num_slots,
        page_size=page_size,
        num_kv_heads=HEADS,
        head_dim=DIM,
        dtype=torch.float32,
        fill=FillPolicy(fill),
    )


def _filled(fill: FillMode = "nan") -> MHAPool:
    pool = _pool(fill=fill)
    for number, buffer in enumerate((*pool.k, *pool.v)):
        buffer.copy_(torch.arange(buffer.numel()).view(buffer.shape) + 1000 * number)
    return pool


def _all(pool: MHAPool) -> Tensor:
    return torch.stack([*pool.k, *pool.v])


@pytest.fixture
def recording() -> Iterator[None]:
    async_probe.configure("record")
    yield
    async_probe.configure("off")


@pytest.mark.parametrize("fill", ["zeros", "nan", "garbage"])
def test_fresh_memory_follows_the_policy_but_padding_is_zero(fill: FillMode) -> None:
    pool = _pool(fill=fill)
    assert pool.size == 16
    assert [tuple(b.shape) for b in (*pool.k, *pool.v)] == [(16, HEADS, DIM)] * (2 * LAYERS)
    content = _all(pool)
    assert not bool(content[:, :4].any())
    if fill == "nan":
        assert bool(content[:, 4:].isnan().all())
    else:
        assert bool(content[:, 4:].any()) is (fill == "garbage")


def test_a_write_reaches_its_layer_and_slots_only() -> None:
    pool = _filled()
    before = _all(pool).clone()
    k, v = torch.randn(2, HEADS, DIM), torch.randn(2, HEADS, DIM)
    pool.write(1, torch.tensor([9, 5]), k, v)
    before[1, [9, 5]], before[LAYERS + 1, [9, 5]] = k, v
    assert torch.equal(_all(pool), before)
    keys, values = pool.read(torch.tensor([5, 9]))
    assert keys.shape == values.shape == (LAYERS, 2, HEADS, DIM)
    assert torch.equal(keys[1], k.flip(0))
    assert torch.equal(values[1], v.flip(0))


def test_what_is_read_is_a_copy() -> None:
    pool = _filled()
    before = _all(pool).clone()
    for part in pool.read(torch.tensor([4, 5])):
        part.zero_()
    assert torch.equal(_all(pool), before)


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=12, unique_by=lambda pair: pair[0]))
@settings(max_examples=50)
def test_a_move_reads_everything_before_it_writes(pairs: list[tuple[int, int]]) -> None:
    """Sources may be targets of other entries, as when accepted nodes shift to the front."""
    pool = _filled()
    expected = _all(pool).clone()
    before = expected.clone()
    for target, source in pairs:
        expected[:, target] = before[:, source]
    targets, sources = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
    pool.move_kv_cache(targets, sources)
    assert torch.equal(_all(pool), expected)


def test_padding_entries_of_a_move_change_nothing() -> None:
    pool = _filled()
    before = _all(pool).clone()
    pool.move_kv_cache(torch.zeros(5, dtype=torch.int64), torch.zeros(5, dtype=torch.int64))
    assert torch.equal(_all(pool), before)


def test_zero_clears_every_layer_of_those_slots() -> None:
    pool = _filled()
    expected = _all(pool).clone()
    expected[:, [4, 7]] = 0
    pool.zero(torch.tensor([4, 7]))
    assert torch.equal(_all(pool), expected)


def test_poison_repaints_those_slots_unless_the_policy_is_zeros() -> None:
    for fill in ("nan", "garbage"):
        pool = _pool(fill=fill)
        pool.zero(torch.arange(16))
        pool.poison(torch.tensor([5, 6]))
        touched = _all(pool).nan_to_num(1.0).ne(0).any(dim=-1).any(dim=-1).all(dim=0)
        assert touched.nonzero().flatten().tolist() == [5, 6]
    kept = _filled("zeros")
    before = _all(kept).clone()
    kept.poison(torch.tensor([5, 6]))
    assert torch.equal(_all(kept), before)


@pytest.mark.usefixtures("recording")
def test_probes_see_bad_slots_and_bad_values() -> None:
    pool = _pool(fill="zeros")
    ones = torch.ones(1, HEADS, DIM)
    pool.write(0, torch.tensor([15]), ones, ones)
    pool.move_kv_cache(torch.tensor([0]), torch.tensor([15]))
    assert async_probe.drain() == []
    pool.write(0, torch.tensor([4]), ones * float("nan"), ones)
    pool.write(1, torch.tensor([4]), ones, ones * float("nan"))
    pool.probe_written(torch.tensor([5, 3]))
    assert async_probe.drain() == []
    pool.probe_written(torch.tensor([[5, 4]]))
    with pytest.raises((RuntimeError, IndexError)):
        pool.write(0, torch.tensor([16]), ones, ones)
    with pytest.raises((RuntimeError, IndexError)):
        pool.move_kv_cache(torch.tensor([16]), torch.tensor([99]))
    assert [violation.signature for violation in async_probe.drain()] == [
        "nan@kv_pool.write.k",
        "nan@kv_pool.write.v",
        "oob@kv_pool.write.loc",
        "oob@move_kv_cache.tgt_loc",
        "oob@move_kv_cache.src_loc",
    ]
