"""Pools by head and of packed latents: writes, moves, and what released slots hold."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug import async_probe
from specdebug.engine.memory.arena import FillPolicy
from specdebug.engine.memory.kv_pool import MLAPool, kv_pool_of
from specdebug.engine.textbook.memory.mha_pool import MHAPool

LAYERS, HEADS, DIM, LATENT = 2, 2, 3, 2
LAYOUTS = ["mha", "mla"]
Pool = MHAPool | MLAPool


class Asked:
    """A model, as a pool sees it."""

    num_layers, num_kv_heads, head_dim, value_dim = LAYERS, HEADS, DIM, DIM

    def __init__(self, layout: str) -> None:
        self.kv_layout = layout
        if layout == "mla":
            self.num_kv_heads, self.value_dim = 1, LATENT


def pool_of(layout: str, fill: str = "nan") -> Any:
    """A pool of 12 slots in pages of 4, as a model that names its layout gets it."""
    options: Any = {"num_slots": 12, "page_size": 4, "fill": FillPolicy(fill), "device": torch.device("cpu")}  # type: ignore[arg-type]
    made = kv_pool_of(layout)(Asked(layout), dtype=torch.float32, **options)
    assert isinstance(made, {"mha": MHAPool, "mla": MLAPool}[layout])
    assert (made.size, made.num_layers) == (16, LAYERS)
    return made


def planes(pool: Pool) -> list[Tensor]:
    return [*pool.k, *pool.v] if isinstance(pool, MHAPool) else pool.rows


def everything(pool: Pool) -> Tensor:
    return torch.stack(planes(pool))


def filled(layout: str, fill: str = "nan") -> Any:
    pool = pool_of(layout, fill)
    for number, buffer in enumerate(planes(pool)):
        buffer.copy_(torch.arange(buffer.numel()).view(buffer.shape) + 1000 * number)
    return pool


def news(pool: Pool, count: int = 1, **at: float) -> tuple[Tensor, Tensor]:
    """New keys and values; NaN in the ``key`` or in the ``value`` if asked."""
    if isinstance(pool, MHAPool):
        k, v = torch.randn(count, HEADS, DIM), torch.randn(count, HEADS, DIM)
        k[..., 0] += at.get("key", 0.0)
        v[..., 0] += at.get("value", 0.0)
        return k, v
    rows = torch.randn(count, 1, DIM)
    rows[..., -1] += at.get("key", 0.0)
    rows[..., 0] += at.get("value", 0.0)
    return rows, rows[..., :LATENT]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fill", ["zeros", "nan", "garbage"])
def test_fresh_memory_follows_the_policy_but_padding_is_zero(layout: str, fill: str) -> None:
    content = everything(pool_of(layout, fill))
    assert tuple(content.shape) == ((2 * LAYERS, 16, HEADS, DIM) if layout == "mha" else (LAYERS, 16, 1, DIM))
    assert not bool(content[:, :4].any())
    assert bool(content[:, 4:].isnan().all()) == (fill == "nan")
    assert bool(content[:, 4:].any()) == (fill != "zeros")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_write_reaches_its_layer_and_slots_only_and_what_is_read_is_a_copy(layout: str) -> None:
    pool = filled(layout)
    before = everything(pool).clone()
    k, v = news(pool, 2)
    pool.write(1, torch.tensor([9, 5]), k, v)
    before[1, [9, 5]] = k
    if layout == "mha":
        before[LAYERS + 1, [9, 5]] = v
    assert torch.equal(everything(pool), before)
    keys, values = pool.read(torch.tensor([5, 9]))
    assert torch.equal(keys[1], k.flip(0))
    assert torch.equal(values[1], v.flip(0))
    keys.zero_()
    values.zero_()
    assert torch.equal(everything(pool), before)


def test_latents_are_a_view_of_the_first_columns_of_keys() -> None:
    """So that an executor may fetch both at once."""
    pool = filled("mla")
    for layer in range(LAYERS):
        k, v = pool.kv_buffer(layer)
        assert (k.data_ptr(), k.stride(), v.shape[-1]) == (v.data_ptr(), v.stride(), LATENT)
    place = pool.destination(1, torch.tensor([6]))
    place.k[place.slots] = -1.0
    assert bool((everything(pool)[1, 6] == -1).all())


@pytest.mark.parametrize("layout", LAYOUTS)
@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=12, unique_by=lambda pair: pair[0]))
@settings(max_examples=40)
def test_a_move_reads_everything_before_it_writes(layout: str, pairs: list[tuple[int, int]]) -> None:
    """Sources may be targets of other entries, as when accepted nodes shift to the front."""
    pool = filled(layout)
    expected = everything(pool).clone()
    before = expected.clone()
    for target, source in pairs:
        expected[:, target] = before[:, source]
    targets, sources = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
    pool.move_kv_cache(targets, sources)
    assert torch.equal(everything(pool), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(st.lists(st.integers(4, 15), max_size=6, unique=True), st.sampled_from(["nan", "garbage", "zeros"]))
@settings(max_examples=30)
def test_zero_and_poison_touch_those_slots_in_every_layer_and_no_other(
    layout: str, slots: list[int], fill: str
) -> None:
    pool = filled(layout, fill)
    before, at = everything(pool).clone(), torch.tensor(slots, dtype=torch.int64)
    others = [slot for slot in range(16) if slot not in slots]
    pool.zero(at)
    assert not bool(everything(pool)[:, slots].any())
    pool.poison(at)
    assert torch.equal(everything(pool)[:, others], before[:, others])
    assert bool(everything(pool)[:, slots].any()) == (bool(slots) and fill != "zeros")


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_probes_see_bad_slots_and_bad_values(layout: str) -> None:
    pool = pool_of(layout, "zeros")
    for part in ("key", "value"):
        pool.write(0, torch.tensor([15]), *news(pool))
        pool.write(1, torch.tensor([4]), *news(pool, **{part: float("nan")}))
        pool.probe_written(torch.tensor([5, 3]))
        assert async_probe.drain() == []
        pool.probe_written(torch.tensor([[5, 4]]))
        seen = [violation.signature for violation in async_probe.drain()]
        assert seen == [f"nan@kv_pool.write.{'v' if (layout, part) == ('mha', 'value') else 'k'}"]
    with pytest.raises((RuntimeError, IndexError)):
        pool.write(0, torch.tensor([16]), *news(pool))
    with pytest.raises((RuntimeError, IndexError)):
        pool.move_kv_cache(torch.tensor([16]), torch.tensor([99]))
    assert [violation.signature for violation in async_probe.drain()] == [
        "oob@kv_pool.write.loc",
        "oob@move_kv_cache.tgt_loc",
        "oob@move_kv_cache.src_loc",
    ]
