"""Accesses of interpreted kernels, held against the tensors, rows and pointers that they were given."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.kernel_memory.regions import MAX_TAG, base_of, live_tensors, plain, plain_of, tag_of, tags_of

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


def test_memory_of_nobody_reads_as_all_bits_set_and_is_not_written(watch: Watch) -> None:
    far, dst = 1 << 40, ints(0, 0)
    kernels.copy[(1,)](ints(5), dst, far, 2, BLOCK=2)
    kernels.fill[(1,)](dst, far, 2, 7, BLOCK=2)
    load, store = watch.poll()
    assert dst.tolist() == [POISON, POISON]
    assert (load.signature, store.signature) == ("oob@copy.src", "oob@fill.dst")
    assert load.words.endswith("in memory of no tensor")
    assert store.access.line == line_of("the store of fill")


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


@settings(max_examples=25)
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


def table(rows: int = 4, width: int = 8) -> torch.Tensor:
    return torch.full((rows, width), -1, dtype=torch.int32)


def test_a_row_that_runs_into_the_next_is_told_with_both(watch: Watch) -> None:
    cells = table()
    kernels.fill_row[(3,)](cells, 8, 5, 6, BLOCK=8)
    [found] = watch.poll()
    assert found.signature == "oob@fill_row.table"
    assert found.access.program == (1, 0, 0)
    assert found.words == "1 to 3 elements behind the end of row 1 of int32 [4, 8], in table (int32 [4, 8])"
    assert cells[2, :3].tolist() == [3, 4, 5]


def test_a_row_of_number_0_is_known_once_another_was(watch: Watch) -> None:
    cells = table()
    kernels.fill_row[(2,)](cells, 8, 0, 8, BLOCK=8)
    assert watch.poll() == []
    kernels.fill_row[(1,)](cells, 8, 0, 9, BLOCK=16)
    [found] = watch.poll()
    assert found.words.startswith("1 element behind the end of row 0 of int32 [4, 8]")


def test_a_row_in_front(watch: Watch) -> None:
    kernels.fill_row[(2,)](table(), 8, -2, 2, BLOCK=2)
    found = watch.poll()
    assert any(each.words.startswith("1 to 2 elements in front of row 1 of int32 [4, 8]") for each in found)


def test_the_cells_between_the_columns_of_a_slice_and_the_next_row_are_not_the_rows(watch: Watch) -> None:
    kernels.fill_row[(3,)](table()[:, :5], 8, 0, 6, BLOCK=8)
    [found] = watch.poll()
    assert found.words.startswith("1 element behind the end of row 1 of int32 [4, 5]")


def test_a_block_of_two_dimensions_may_span_rows(watch: Watch) -> None:
    cells = table()
    kernels.fill_tile[(1,)](cells, 8, 1, ROWS=2, WIDTH=8)
    assert watch.poll() == []
    assert cells[1:3].eq(1).all()


def test_a_kernel_without_the_stride_may_take_it_as_flat(watch: Watch) -> None:
    kernels.fill_flat[(2,)](table(), 16, BLOCK=16)
    assert watch.poll() == []


def test_a_place_that_has_moved_by_part_of_a_row_does_not_move_by_rows(watch: Watch) -> None:
    cells = table(8, 4)
    kernels.fill_flat[(2,)](cells, 6, BLOCK=8)  # 4 is no argument; nothing is learned that could harm
    kernels.fill_row[(2,)](cells, 4, 0, 4, BLOCK=4)
    assert watch.poll() == []


def layers(count: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Some tensors of 4 elements, and their addresses."""
    buffers = [torch.arange(4, dtype=torch.int32) + 10 * n for n in range(count)]
    return buffers, torch.tensor([each.data_ptr() for each in buffers])


def test_what_they_lead_to_may_be_read(watch: Watch) -> None:
    buffers, pointers = layers(2)
    out = torch.zeros(2, dtype=torch.int32)
    kernels.through_pointers[(2,)](pointers, out, 3)
    assert out.tolist() == [3, 13]
    assert watch.poll() == []
    assert len(buffers) == 2


def test_leaving_it_is_charged_to_the_argument_that_held_the_pointer(watch: Watch) -> None:
    buffers, pointers = layers(2)
    out = torch.zeros(2, dtype=torch.int32)
    kernels.through_pointers[(2,)](pointers, out, 1 << 40)
    [found] = watch.poll()
    assert (found.signature, found.count) == ("oob@through_pointers.pointers", 2)
    assert "behind the end of int32 [4]" in found.words
    assert out.tolist() == [-1, -1]
    assert len(buffers) == 2


def test_a_pointer_that_is_an_argument_by_itself(watch: Watch) -> None:
    buffer, out = torch.arange(4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    kernels.through_number[(1,)](buffer.data_ptr(), out, 2)
    assert (out.item(), watch.poll()) == (2, [])
    kernels.through_number[(1,)](buffer.data_ptr(), out, 1 << 40)
    assert [found.signature for found in watch.poll()] == ["oob@through_number.address"]


def test_memory_that_torch_does_not_know_is_read_and_not_told(watch: Watch) -> None:
    foreign = (ctypes.c_int32 * 4)(7, 8, 9, 10)
    out = torch.zeros(1, dtype=torch.int32)
    kernels.through_number[(1,)](ctypes.addressof(foreign), out, 1)
    assert (out.item(), watch.poll()) == (8, [])


def test_an_address_that_is_nobodys_is_told_and_does_not_end_the_process(watch: Watch) -> None:
    out = torch.zeros(1, dtype=torch.int32)
    kernels.through_number[(1,)](1 << 45, out, 0)
    [found] = watch.poll()
    assert found.words == "address 0x200000000000 is memory of no tensor"
    assert found.signature == "oob@through_number.address"
    assert out.item() == -1


def test_a_tensor_that_has_gone_is_not_an_owner(watch: Watch) -> None:
    buffers, pointers = layers(1)
    out = torch.zeros(1, dtype=torch.int32)
    kernels.through_pointers[(1,)](pointers, out, 0)
    fresh, moved = layers(1)
    kernels.through_pointers[(1,)](moved, out, 1)
    assert (out.item(), watch.poll()) == (1, [])
    assert len(buffers) == len(fresh) == 1


def test_what_only_stands_for_a_tensor_is_passed_over() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3)
    assert fake.device.type == "cpu"
    assert all(each is not fake for each in live_tensors())


ADDRESSES = st.integers(0, (1 << 48) - 1)
OFFSETS = st.integers(-(1 << 48), 1 << 48)


@given(st.integers(0, MAX_TAG), ADDRESSES, OFFSETS)
def test_tag_and_address_are_told_apart(tag: int, address: int, offset: int) -> None:
    pointer = (base_of(tag) + address + offset) % (1 << 64)
    assert (tag_of(pointer), plain_of(pointer)) == (tag, address + offset)
    block = np.array([pointer], dtype=np.uint64)
    assert (tags_of(block).tolist(), plain(block).tolist()) == ([tag], [address + offset])
