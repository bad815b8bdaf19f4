"""Loads, stores and atomics outside what a kernel was given: each is told, and does what it would on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from specdebug.kernel_memory.watch import Watch
from tests.kernel_memory import kernels

POISON = -1


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def line_of(comment: str) -> str:
    """File and line of the kernel's line with a comment."""
    file = Path(kernels.__file__)
    number = next(n for n, line in enumerate(file.read_text("utf-8").splitlines(), 1) if f"# {comment}" in line)
    return f"{file.parent.name}/{file.name}:{number}"


def test_what_stays_inside_is_not_told(watch: Watch) -> None:
    src, dst = ints(*range(8)), ints(*[0] * 8)
    kernels.copy[(2,)](src, dst, 0, 8, BLOCK=4)
    assert dst.equal(src)
    assert watch.poll() == []
    assert watch.launches() == {"kernel.copy": 1}


def test_a_load_behind_the_end_names_argument_line_program_and_distance(watch: Watch) -> None:
    src, dst = ints(*range(8)), ints(*[0] * 12)
    kernels.copy[(3,)](src, dst, 0, 12, BLOCK=4)
    [found] = watch.poll()
    assert found.signature == "oob@copy.src"
    assert (found.access.what, found.access.program, found.access.line) == (
        "load",
        (2, 0, 0),
        line_of("the load of copy"),
    )
    assert found.words.startswith("1 to 4 elements behind the end of int32 [8], in ")
    assert found.count == 4


def test_a_load_in_front(watch: Watch) -> None:
    src, dst = ints(*range(8)), ints(*[0] * 8)
    kernels.copy[(1,)](src, dst, -3, 8, BLOCK=8)
    [found] = watch.poll()
    assert found.words.startswith("1 to 3 elements in front of int32 [8], in ")
    assert dst[3:].tolist() == [0, 1, 2, 3, 4]


def test_lanes_that_are_masked_off_are_not_told(watch: Watch) -> None:
    src, dst = ints(1, 2, 3), ints(0, 0, 0)
    kernels.copy[(1,)](src, dst, 0, 3, BLOCK=16)
    assert watch.poll() == []
    assert dst.tolist() == [1, 2, 3]


def test_memory_of_nobody_reads_as_all_bits_set_and_is_not_written(watch: Watch) -> None:
    far, dst = 1 << 40, ints(0, 0)
    kernels.copy[(1,)](ints(5), dst, far, 2, BLOCK=2)
    kernels.fill[(1,)](dst, far, 2, 7, BLOCK=2)
    load, store = watch.poll()
    assert dst.tolist() == [POISON, POISON]
    assert (load.signature, store.signature) == ("oob@copy.src", "oob@fill.dst")
    assert load.words.endswith("in memory of no tensor")
    assert store.access.line == line_of("the store of fill")


def test_poison_of_floats_is_no_number(watch: Watch) -> None:
    dst = torch.zeros(2)
    kernels.copy[(1,)](torch.ones(2), dst, 1 << 40, 2, BLOCK=2)
    assert dst.isnan().all()
    assert [found.signature for found in watch.poll()] == ["oob@copy.src"]


def test_an_access_that_lands_in_another_argument_is_carried_out_and_names_it(watch: Watch) -> None:
    src, dst = ints(*range(64)), ints(*[0] * 64)
    between = (dst.data_ptr() - src.data_ptr()) // 4
    dst[:2] = ints(41, 42)
    kernels.copy[(1,)](src, dst, between, 2, BLOCK=2)
    [found] = watch.poll()
    assert dst[:2].tolist() == [41, 42]
    assert found.words.endswith("in dst (int32 [64])")


def test_a_neighbour_that_is_no_argument_is_named_by_who_holds_it(watch: Watch) -> None:
    class Pool:
        def __init__(self) -> None:
            self.cells = ints(*[0] * 64)

    pool, dst = Pool(), ints(0, 0)
    kernels.fill[(1,)](dst, (pool.cells.data_ptr() - dst.data_ptr()) // 4, 2, 7, BLOCK=2)
    [found] = watch.poll()
    assert pool.cells[:3].tolist() == [7, 7, 0]
    assert found.words.endswith("in Pool.cells (int32 [64])")


def test_a_slice_is_left_though_its_allocation_is_not(watch: Watch) -> None:
    whole = ints(*[0] * 16)
    kernels.fill[(1,)](whole[:8], 6, 4, 7, BLOCK=4)
    [found] = watch.poll()
    assert whole.tolist() == [0] * 6 + [7] * 4 + [0] * 6
    assert found.words.startswith("1 to 2 elements behind the end of the slice int32 [8]")


def test_a_strided_view_reaches_from_its_first_to_its_last_element(watch: Watch) -> None:
    every_third, out = ints(*range(30))[1:29:3], ints(0, 0)
    kernels.gather[(1,)](every_third, torch.tensor([0, 27]), out, 2, BLOCK=2)
    assert watch.poll() == []
    assert out.tolist() == [1, 28]
    kernels.gather[(1,)](every_third, torch.tensor([-1, 28]), out, 2, BLOCK=2)
    [found] = watch.poll()
    assert (found.signature, found.count, out.tolist()) == ("oob@gather.src", 2, [0, 29])


def test_atomics(watch: Watch) -> None:
    sums, out = ints(0, 0, 0), ints(0)
    kernels.add_at[(2,)](sums, 1)
    kernels.add_at[(1,)](sums, 1 << 40)
    kernels.swap_at[(1,)](sums, 0, out)
    kernels.swap_at[(1,)](sums, 1 << 40, out)
    assert sums.tolist() == [1, 2, 0]
    assert out.tolist() == [POISON]
    found = watch.poll()
    assert [each.signature for each in found] == ["oob@add_at.sums", "oob@swap_at.locks"]
    assert {each.access.what for each in found} == {"atomic"}


def test_every_lane_is_charged_to_the_argument_that_it_came_from(watch: Watch) -> None:
    left, right, out = ints(1, 2, 3, 4), ints(5, 6), ints(0, 0, 0, 0)
    kernels.either[(1,)](left, right, out, 3, BLOCK=4)
    [found] = watch.poll()
    assert (found.signature, found.count) == ("oob@either.right", 2)
    assert out[0::2].tolist() == [4, 4]


def test_findings_of_one_line_are_counted(watch: Watch) -> None:
    src, dst = ints(1), ints(*[0] * 8)
    kernels.copy[(4,)](src, dst, 1, 8, BLOCK=2)
    [found] = watch.poll()
    assert (found.access.program, found.accesses, found.count) == ((0, 0, 0), 4, 8)
    assert watch.poll() == []


@settings(max_examples=60)
@given(
    size=st.integers(1, 6),
    places=st.lists(st.one_of(st.integers(-9, 15), st.integers(-(1 << 45), 1 << 45)), min_size=1, max_size=8),
    meant=st.integers(0, 8),
)
def test_against_every_lane_looked_at_by_itself(size: int, places: list[int], meant: int) -> None:
    from specdebug import kernel_memory
    from specdebug.kernel_memory.finding import KernelRule

    meant = min(meant, len(places))
    src, out = torch.arange(size, dtype=torch.int32), torch.full((8,), 99, dtype=torch.int32)
    watch = kernel_memory.begin([KernelRule("*")])
    try:
        kernels.gather[(1,)](src, torch.tensor(places), out, meant, BLOCK=8)
        found = watch.poll()
    finally:
        kernel_memory.end()
    bad = [place for place in places[:meant] if not 0 <= place < size]
    assert sum(each.count for each in found) == len(bad)
    assert {each.signature for each in found} == ({"oob@gather.src"} if bad else set())
    for lane, place in enumerate(places[:meant]):
        if 0 <= place < size:
            assert out[lane] == place
    assert out[meant:].tolist() == [99] * (8 - meant)
