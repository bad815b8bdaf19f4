"""Rows of a tensor of two dimensions, of a kernel that was given the distance between them."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from specdebug.kernel_memory.watch import Watch
from tests.kernel_memory import kernels


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


def test_the_last_row_leaves_the_tensor(watch: Watch) -> None:
    kernels.fill_row[(4,)](table(), 8, 0, 9, BLOCK=16)
    rows, end = watch.poll()
    assert "behind the end of row 1" in rows.words
    assert end.words.startswith("1 element behind the end of int32 [4, 8]")
    assert end.access.program == (3, 0, 0)


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
