"""Expand page tables against a loop; and what too many pages for a row overrun."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.errors import IllegalAddress
from specdebug.engine.kernels.expand_page_table import set_expand_page_table
from specdebug.engine.memory.arena import Arena, ArenaLayout, FillPolicy


def _branches(page: int, tail: int, steps: int, rows: int) -> torch.Tensor:
    """Each branch on scattered pages of its own, its slots beginning ``tail`` into the first: [rows, steps]."""
    per_row = -(-(tail + steps) // page)
    pages = torch.randperm(rows * per_row, generator=torch.Generator().manual_seed(1)).view(rows, per_row) + 1
    cells = torch.arange(tail, tail + steps)
    return pages[:, cells // page] * page + cells % page


@given(
    page=st.sampled_from([1, 2, 4, 16, 256]),
    steps=st.integers(1, 8),
    rows=st.integers(1, 6),
    data=st.data(),
)
@settings(max_examples=80)
def test_each_row_lists_its_pages_once_in_order(page: int, steps: int, rows: int, data: st.DataObject) -> None:
    tail = data.draw(st.integers(0, page - 1))
    cache_loc = _branches(page, tail, steps, rows)
    table = torch.full((rows + 1, steps + 1), -1, dtype=torch.int32)
    set_expand_page_table(cache_loc, page, table)
    for row in range(rows):
        expected = [key for key, _ in groupby(int(slot) // page for slot in cache_loc[row])]
        assert table[row, : len(expected)].tolist() == expected
        assert bool((table[row, len(expected) :] == -1).all())
    assert bool((table[rows] == -1).all())


def test_rows_of_a_sliced_table_keep_its_stride() -> None:
    whole = torch.full((3, 8), -1, dtype=torch.int32)
    set_expand_page_table(torch.tensor([[4, 5], [8, 9]]), 4, whole[:, :3])
    assert whole[:, 0].tolist() == [1, 2, -1]


def _arena(rows: int, width: int) -> Arena:
    layout = ArenaLayout(guards=True)
    layout.add("draft.expand_page_table.0", (rows, width), torch.int32)
    layout.add("draft.expand_cache_seqlens.0", (rows,), torch.int32)
    arena = layout.build(FillPolicy("zeros"), torch.device("cpu"))
    arena["draft.expand_page_table.0"].fill_(-1)
    return arena


def test_a_row_with_more_pages_than_columns_runs_into_the_next_and_the_last_into_the_guard() -> None:
    """P = 2, S = 4 from an odd length: three pages for a row of two columns (SGLang PR 27360)."""
    arena = _arena(rows=3, width=2)
    cache_loc = _branches(2, 1, 4, 3)
    set_expand_page_table(cache_loc, 2, arena["draft.expand_page_table.0"])
    pages = (cache_loc[:, [0, 1, 3]] // 2).tolist()
    table = arena["draft.expand_page_table.0"]
    assert table[0].tolist() == pages[0][:2]
    assert int(table[1, 0]) in (pages[0][2], pages[1][0])
    (found,) = arena.check_guards()
    assert (found.buffer, found.victim) == ("draft.expand_page_table.0", "draft.expand_cache_seqlens.0")
    assert (found.first_byte, found.overran) == (0, 4)


def test_leaving_the_allocation_is_an_illegal_address() -> None:
    table = torch.zeros((2, 2), dtype=torch.int32)
    with pytest.raises(IllegalAddress, match=r"set_expand_page_table\.page_table: offsets 0\.\.4"):
        set_expand_page_table(_branches(2, 1, 4, 2), 2, table)
