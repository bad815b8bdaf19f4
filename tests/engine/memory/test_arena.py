"""The arena: what unwritten memory holds, where buffers lie, what an overrun hits, and what the guards say of it."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.errors import IllegalAddress
from specdebug.engine.kernels.pointer import raw_block
from specdebug.engine.memory.arena import Arena, ArenaLayout, FillMode, FillPolicy, Scratch

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


def test_the_last_buffer_overruns_the_end_and_several_are_listed_in_layout_order() -> None:
    arena = _arena([((4,), torch.int64)] * 3, guards=True)
    for name in ("b2", "b0"):
        raw_block(arena[name], 4, 1, "test").fill_(7)
    assert [(v.buffer, v.victim) for v in arena.check_guards()] == [("b0", "b1"), ("b2", "end of arena")]


def test_an_overrun_tells_where_it_lies_in_the_arena() -> None:
    arena = _arena([((3, 4), torch.int32), ((2,), torch.int64)], guards=True)
    raw_block(arena["b0"], 12, 5, "x").fill_(7)
    (found,) = arena.check_guards()
    (_, low, high, _), second = found.arena["buffers"]
    assert found.arena["buffers"] == [["b0", *_bytes(arena["b0"]), 16], ["b1", *_bytes(arena["b1"]), 8]]
    assert found.arena["reached"] == [high, high + 20]
    assert low < high < second[1] < found.arena["size"]


def test_an_access_that_leaves_the_arena_tells_the_same() -> None:
    arena = _arena([((3, 4), torch.int32), ((2,), torch.int64)], guards=False)
    with pytest.raises(IllegalAddress) as error:
        raw_block(arena["b0"], 10, 500, "kernel.b0")
    start, end = _bytes(arena["b0"])
    size = arena["b0"].untyped_storage().nbytes()
    assert error.value.arena == {
        "buffers": [["b0", start, end, 16]],
        "size": size,
        "reached": [start + 40, start + 2040],
    }


def test_a_name_is_declared_once() -> None:
    layout = ArenaLayout(guards=False)
    layout.add("x", (1,), torch.int64)
    with pytest.raises(ValueError, match="'x' declared twice"):
        layout.add("x", (2,), torch.int32)


MODES: tuple[FillMode, ...] = ("zeros", "nan", "garbage")
INTS = [torch.int64, torch.int32, torch.int8, torch.uint8]
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def _painted(mode: FillMode, dtype: torch.dtype, shape: tuple[int, ...] = (7, 9)) -> Tensor:
    tensor = torch.ones(shape, dtype=dtype)
    FillPolicy(mode).paint(tensor)
    return tensor


def test_every_type_is_painted_as_the_policy_says() -> None:
    for dtype in (*INTS, *FLOATS, torch.bool):
        assert not bool(_painted("zeros", dtype).any())
        assert dtype not in FLOATS or bool(_painted("nan", dtype).isnan().all())
        assert _painted("garbage", dtype, shape=(0, 3)).shape == (0, 3)
    assert set(_painted("garbage", torch.bool).view(torch.uint8).unique().tolist()) == {0, 1}
    assert [FillPolicy(mode).poisons for mode in MODES] == [False, True, True]


def test_workspaces_give_fresh_memory_or_the_declared_buffer_whatever_is_asked_for() -> None:
    scratch = Scratch(FillPolicy("garbage"), CPU)
    first, second = (scratch.take("x", (3, 4), torch.int32) for _ in range(2))
    assert (first.shape, first.dtype, torch.equal(first, second)) == ((3, 4), torch.int32, False)
    arena = _arena([((4, 8), torch.int32)], guards=False)
    for shape in ((4, 8), (1, 2), (99, 99)):
        assert arena.take("b0", shape, torch.int32).data_ptr() == arena["b0"].data_ptr()
    with pytest.raises(KeyError, match="undeclared"):
        arena.take("undeclared", (1,), torch.int32)


@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_garbage_depends_on_the_seed_and_on_what_was_painted_before(dtype: torch.dtype) -> None:
    def run(seed: int) -> list[torch.Tensor]:
        policy, out = FillPolicy("garbage", seed), []
        for _ in range(3):
            out.append(torch.ones(5, 5, dtype=dtype))
            policy.paint(out[-1])
        return [tensor.view(torch.uint8) for tensor in out]

    first, again, other = run(3), run(3), run(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_no_two_rows_hold_the_same_noise(mode: FillMode) -> None:
    """Of a buffer longer than the bank, too, whatever the width of its rows."""
    rows = _painted(mode, torch.int64, shape=(600, 512))
    assert rows.unique(dim=0).shape[0] == (1 if mode == "zeros" else 600)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.bool])
def test_a_gpu_s_memory_holds_what_a_cpu_s_would_and_nobody_waits(dtype: torch.dtype) -> None:
    policies = {device: FillPolicy("garbage", 3) for device in ("cpu", "cuda")}
    for device, policy in policies.items():
        policy.paint(torch.empty(5, dtype=dtype, device=device))
    shape, painted = (300, 1000), {}
    for device, policy in policies.items():
        painted[device] = torch.empty(shape, dtype=dtype, device=device)
        torch.cuda.set_sync_debug_mode("error")
        try:
            policy.paint(painted[device])
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(painted["cuda"].cpu().view(torch.uint8), painted["cpu"].view(torch.uint8))
