"""Pool rows written and moved on the device against the references."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.kernels import kv_cache as reference
from tests.engine.kernels.device.arenas import guarded_outputs, memory, twin_arenas
from tests.interpreter import float_types

pytest.importorskip("triton")

from specdebug.engine.kernels.triton import kv_cache as twin

LAYERS, SLOTS, HEADS, DIM = 2, 12, 2, 16
SHAPE = (2 * LAYERS, SLOTS, HEADS, DIM)


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize("tile", [16, 2048])
@given(slots=st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=5), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_rows_of_a_fused_projection_are_written(device, dtype, tile: int, slots: list[int], seed: int) -> None:
    """k and v are slices of one wider tensor, v's dimensions in another order; slots are one column of several."""
    here, there = twin_arenas(device, pool=(SHAPE, dtype))
    fused = torch.randn(len(slots), 3 * HEADS, DIM, generator=torch.Generator().manual_seed(seed)).to(dtype)
    turned = fused.transpose(1, 2).contiguous().transpose(1, 2)
    index = torch.tensor([slots, slots], dtype=torch.int64).t().contiguous()
    with mock.patch.object(twin, "_MAX_TILE", tile):
        for write, arena, place in (
            (reference.write_kv, here, torch.device("cpu")),
            (twin.write_kv, there, device),
        ):
            pool = arena["pool"]
            k, v = fused.to(place)[:, HEADS : 2 * HEADS], turned.to(place)[:, 2 * HEADS :]
            write(pool[1], pool[LAYERS + 1], index.to(place)[:, 0], k, v)
    assert torch.equal(memory(there["pool"]), memory(here["pool"]))
    assert there.check_guards() == []


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize("tile", [16, 2048])
@given(
    pairs=st.lists(
        st.tuples(st.integers(1, SLOTS - 1), st.integers(0, SLOTS - 1)), max_size=6, unique_by=lambda pair: pair[0]
    ),
    padding=st.integers(0, 2),
)
@settings(max_examples=10)
def test_a_move_reads_everything_before_it_writes(
    device, dtype, tile: int, pairs: list[tuple[int, int]], padding: int
) -> None:
    here, there = twin_arenas(device, pool=(SHAPE, dtype))
    targets, sources = torch.tensor(pairs + [(0, 0)] * padding, dtype=torch.int64).view(-1, 2).unbind(1)
    reference.move_kv(here["pool"], targets, sources)
    with mock.patch.object(twin, "_MAX_TILE", tile), guarded_outputs():
        twin.move_kv(there["pool"], targets.to(device), sources.to(device))
    assert torch.equal(memory(there["pool"]), memory(here["pool"]))
    assert there.check_guards() == []


def test_a_slot_outside_its_layer_lands_where_it_points(device) -> None:
    """The first slot after layer 0 is slot 0 of layer 1: nothing on a device stands between them."""
    pool = torch.zeros(SHAPE, device=device)
    row = torch.ones(1, HEADS, DIM, device=device)
    twin.write_kv(pool[0], pool[LAYERS], torch.tensor([SLOTS], device=device), row, row)
    assert pool.flatten(2).any(-1).nonzero().tolist() == [[1, 0], [LAYERS + 1, 0]]
