"""The arena: where buffers lie, what an overrun hits, and what the guards say of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.kernels.pointer import flat_storage, raw_block
from specdebug.engine.memory.arena import Arena, ArenaLayout, FillMode, FillPolicy

CPU = torch.device("cpu")
DTYPES = [torch.int64, torch.int32, torch.float32, torch.bfloat16, torch.bool, torch.uint8]
SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)
SPECS = st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), min_size=1, max_size=6)
GUARD = 256  # bytes a guard has at least


def _arena(specs: list[tuple[tuple[int, ...], torch.dtype]], *, guards: bool, fill: FillMode = "zeros") -> Arena:
    layout = ArenaLayout(guards=guards)
    for number, (shape, dtype) in enumerate(specs):
        layout.add(f"b{number}", shape, dtype)
    return layout.build(FillPolicy(fill), CPU)


def _bytes(tensor: Tensor) -> tuple[int, int]:
    """First byte of a contiguous view within its allocation, and the one after its last."""
    start = tensor.storage_offset() * tensor.element_size()
    return start, start + tensor.numel() * tensor.element_size()


@given(specs=SPECS, guards=st.booleans())
@settings(max_examples=60)
def test_buffers_lie_in_order_aligned_apart_and_in_one_allocation(
    specs: list[tuple[tuple[int, ...], torch.dtype]], guards: bool
) -> None:
    arena = _arena(specs, guards=guards)
    views = [arena[f"b{number}"] for number in range(len(specs))]
    assert [(tuple(v.shape), v.dtype) for v in views] == specs
    assert all(view.is_contiguous() for view in views)
    assert len({view.untyped_storage().data_ptr() for view in views}) == 1
    assert all(_bytes(view)[0] % 64 == 0 for view in views)
    for before, after in pairwise(views):
        assert _bytes(after)[0] >= _bytes(before)[1] + (GUARD if guards else 0)
    assert views[-1].untyped_storage().nbytes() >= _bytes(views[-1])[1] + (GUARD if guards else 0)


@given(specs=SPECS)
@settings(max_examples=40)
def test_writes_inside_buffers_touch_no_neighbour_and_no_guard(
    specs: list[tuple[tuple[int, ...], torch.dtype]],
) -> None:
    arena = _arena(specs, guards=True)
    for number in range(len(specs)):
        arena[f"b{number}"].fill_(1)
        for other in range(number + 1, len(specs)):
            assert not bool(arena[f"b{other}"].any())
    assert arena.check_guards() == []


@given(count=st.integers(1, 4 * GUARD), dtype=st.sampled_from([torch.int64, torch.int32, torch.uint8]))
@settings(max_examples=40)
def test_an_overrun_is_reported_with_its_extent_once(count: int, dtype: torch.dtype) -> None:
    """The guard caps what can be seen: a long overrun reads as "at least"."""
    arena = _arena([((3,), dtype), ((GUARD,), torch.int64)], guards=True)
    size = torch.empty(0, dtype=dtype).element_size()
    guard = _bytes(arena["b1"])[0] - _bytes(arena["b0"])[1]
    count = min(count, 2 * GUARD // size)
    raw_block(arena["b0"], 3, count, "test").fill_(0)
    (found,) = arena.check_guards()
    seen = min(count * size, guard)
    assert (found.buffer, found.victim) == ("b0", "b1")
    assert (found.first_byte, found.overran, found.damaged) == (0, seen, seen)
    assert str(found) == f"b0 overran by at least {seen} bytes into b1"
    assert arena.check_guards() == []
    raw_block(arena["b0"], 3, 1, "test").fill_(0)
    assert [v.overran for v in arena.check_guards()] == [size]


def test_damage_far_past_the_end_says_where_it_begins() -> None:
    arena = _arena([((16,), torch.int32), ((16,), torch.int32)], guards=True)
    raw_block(arena["b0"], 16 + 5, 2, "test").fill_(-1)
    (found,) = arena.check_guards()
    assert (found.first_byte, found.overran, found.damaged) == (20, 28, 8)


def test_the_last_buffer_overruns_the_end_and_several_are_listed_in_layout_order() -> None:
    arena = _arena([((4,), torch.int64)] * 3, guards=True)
    for name in ("b2", "b0"):
        raw_block(arena[name], 4, 1, "test").fill_(7)
    assert [(v.buffer, v.victim) for v in arena.check_guards()] == [("b0", "b1"), ("b2", "end of arena")]


def test_without_guards_an_overrun_lands_in_the_next_buffer_and_nobody_is_told() -> None:
    arena = _arena([((8,), torch.int64), ((8,), torch.int64)], guards=False)
    raw_block(arena["b0"], 8, 2, "test").fill_(9)
    assert arena["b1"].tolist() == [9, 9, 0, 0, 0, 0, 0, 0]
    assert arena.check_guards() == []


def test_an_overrun_longer_than_the_guard_reaches_the_victim_too() -> None:
    arena = _arena([((8,), torch.int64), ((8,), torch.int64)], guards=True)
    gap = (_bytes(arena["b1"])[0] - _bytes(arena["b0"])[1]) // 8
    raw_block(arena["b0"], 8, gap + 1, "test").fill_(9)
    assert arena["b1"].tolist() == [9, 0, 0, 0, 0, 0, 0, 0]
    assert [v.overran for v in arena.check_guards()] == [gap * 8]


@pytest.mark.parametrize("guards", [False, True])
def test_buffers_are_painted_guards_are_not(guards: bool) -> None:
    specs = [((5,), torch.float32), ((5,), torch.int64)]
    arena = _arena(specs, guards=guards, fill="nan")
    assert bool(arena["b0"].isnan().all())
    again = _arena(specs, guards=guards, fill="nan")
    assert torch.equal(arena["b1"], again["b1"])
    assert arena.check_guards() == []


def test_a_name_is_declared_once() -> None:
    layout = ArenaLayout(guards=False)
    layout.add("x", (1,), torch.int64)
    with pytest.raises(ValueError, match="'x' declared twice"):
        layout.add("x", (2,), torch.int32)


def test_an_arena_of_empty_buffers_exists() -> None:
    arena = _arena([((4, 0), torch.int64)], guards=False)
    assert arena["b0"].shape == (4, 0)
    assert flat_storage(arena["b0"]).numel() > 0
