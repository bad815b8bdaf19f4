"""A pool of packed rows: writes, moves, and what released slots hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug import async_probe
from specdebug.engine.memory.arena import FillMode, FillPolicy
from specdebug.engine.memory.kv_pool import KVPool, MLAPool, kv_pool_of

LAYERS, LATENT, PART = 3, 4, 2
WIDTH = LATENT + PART


def _pool(num_slots: int = 12, page_size: int = 4, fill: FillMode = "nan") -> MLAPool:
    return MLAPool(
        num_layers=LAYERS,
        num_slots=num_slots,
        page_size=page_size,
        row_dim=WIDTH,
        value_dim=LATENT,
        dtype=torch.float32,
        fill=FillPolicy(fill),
    )


def _filled(fill: FillMode = "nan") -> MLAPool:
    pool = _pool(fill=fill)
    for number, buffer in enumerate(pool.rows):
        buffer.copy_(torch.arange(buffer.numel()).view(buffer.shape) + 1000 * number)
    return pool


def _all(pool: MLAPool) -> Tensor:
    return torch.stack(pool.rows)


@pytest.fixture
def recording() -> Iterator[None]:
    async_probe.configure("record")
    yield
    async_probe.configure("off")


class Asked:
    """A model with latent attention, as a pool sees it."""

    kv_layout = "mla"
    num_layers, num_kv_heads, head_dim, value_dim = LAYERS, 1, WIDTH, LATENT


def test_a_model_that_names_the_layout_gets_this_pool() -> None:
    made: KVPool = kv_pool_of("mla")(
        Asked(), num_slots=8, page_size=4, dtype=torch.bfloat16, fill=FillPolicy("nan"), device=torch.device("cpu")
    )
    assert isinstance(made, MLAPool)
    assert (made.size, made.num_layers, made.device.type) == (12, LAYERS, "cpu")
    assert [tuple(side.shape) for side in made.kv_buffer(0)] == [(12, 1, WIDTH), (12, 1, LATENT)]


@pytest.mark.parametrize("fill", ["zeros", "nan", "garbage"])
def test_fresh_memory_follows_the_policy_but_padding_is_zero(fill: FillMode) -> None:
    content = _all(_pool(fill=fill))
    assert tuple(content.shape) == (LAYERS, 16, 1, WIDTH)
    assert not bool(content[:, :4].any())
    if fill == "nan":
        assert bool(content[:, 4:].isnan().all())
    else:
        assert bool(content[:, 4:].any()) is (fill == "garbage")


def test_a_write_reaches_its_layer_and_slots_only() -> None:
    pool = _filled()
    before = _all(pool).clone()
    rows = torch.randn(2, 1, WIDTH)
    pool.write(1, torch.tensor([9, 5]), rows, rows[..., :LATENT])
    before[1, [9, 5]] = rows
    assert torch.equal(_all(pool), before)
    keys, values = pool.read(torch.tensor([5, 9]))
    assert torch.equal(keys[1], rows.flip(0))
    assert torch.equal(values, keys[..., :LATENT])


def test_values_are_a_view_of_the_first_columns_of_keys() -> None:
    """So that an executor may fetch both at once."""
    pool = _filled()
    for layer in range(LAYERS):
        k, v = pool.kv_buffer(layer)
        assert k.data_ptr() == v.data_ptr()
        assert k.stride() == v.stride()
    place = pool.destination(2, torch.tensor([6]))
    place.k[place.slots] = -1.0
    assert bool((place.v[6] == -1).all())
    assert bool((_all(pool)[2, 6] == -1).all())


def test_what_is_read_is_a_copy() -> None:
    pool = _filled()
    before = _all(pool).clone()
    keys, values = pool.read(torch.tensor([4, 5]))
    values.zero_()
    assert torch.equal(keys, before[:, [4, 5]])
    keys.zero_()
    assert torch.equal(_all(pool), before)


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=12, unique_by=lambda pair: pair[0]))
@settings(max_examples=50)
def test_a_move_reads_everything_before_it_writes(pairs: list[tuple[int, int]]) -> None:
    pool = _filled()
    before = _all(pool).clone()
    expected = before.clone()
    for target, source in pairs:
        expected[:, target] = before[:, source]
    targets, sources = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
    pool.move_kv_cache(targets, sources)
    assert torch.equal(_all(pool), expected)


@given(st.lists(st.integers(4, 15), max_size=6, unique=True), st.sampled_from(["nan", "garbage", "zeros"]))
@settings(max_examples=30)
def test_zero_and_poison_touch_those_slots_in_every_layer_and_no_other(slots: list[int], fill: FillMode) -> None:
    pool = _filled(fill)
    before = _all(pool).clone()
    others = [slot for slot in range(16) if slot not in slots]
    at = torch.tensor(slots, dtype=torch.int64)
    pool.zero(at)
    assert not bool(_all(pool)[:, slots].any())
    pool.poison(at)
    assert torch.equal(_all(pool)[:, others], before[:, others])
    if slots and fill == "nan":
        assert bool(_all(pool)[:, slots].isnan().all())
    elif slots:
        assert bool(_all(pool)[:, slots].any()) is (fill == "garbage")


@pytest.mark.usefixtures("recording")
def test_probes_see_bad_slots_and_bad_values_of_either_part() -> None:
    pool = _pool(fill="zeros")
    for column in (0, WIDTH - 1):
        rows = torch.ones(1, 1, WIDTH)
        pool.write(0, torch.tensor([15]), rows, rows[..., :LATENT])
        rows[..., column] = float("nan")
        pool.write(2, torch.tensor([4]), rows, rows[..., :LATENT])
        pool.probe_written(torch.tensor([5, 3]))
        assert async_probe.drain() == []
        pool.probe_written(torch.tensor([[5, 4]]))
        assert [violation.signature for violation in async_probe.drain()] == ["nan@kv_pool.write.k"]
    with pytest.raises((RuntimeError, IndexError)):
        pool.write(0, torch.tensor([16]), rows, rows[..., :LATENT])
    with pytest.raises((RuntimeError, IndexError)):
        pool.move_kv_cache(torch.tensor([16]), torch.tensor([99]))
    assert [violation.signature for violation in async_probe.drain()] == [
        "oob@kv_pool.write.loc",
        "oob@move_kv_cache.tgt_loc",
        "oob@move_kv_cache.src_loc",
    ]
