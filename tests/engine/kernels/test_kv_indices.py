"""Slot lists and page tables against loops, and whom a list that is too short overwrites."""

from dataclasses import dataclass
from itertools import groupby

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.errors import IllegalAddress
from specdebug.engine.kernels.kv_indices import (
    create_kv_indices,
    gather_page_table,
    generate_draft_decode_kv_indices,
    set_expand_page_table,
)
from specdebug.engine.memory.arena import Arena, ArenaLayout, FillPolicy

ROWS, WIDTH, STRIDE = 6, 20, 23


def table_of(seed: int = 0) -> Tensor:
    """Distinct slots, rows further apart than they are long."""
    cells = torch.randperm(ROWS * STRIDE, generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    return cells.view(ROWS, STRIDE)[:, :WIDTH]


@dataclass(frozen=True)
class Batch:
    rows: list[int]
    lengths: list[int]
    topk: int
    steps: int
    seed: int = 0

    @property
    def cache_loc(self) -> Tensor:
        return 1000 + torch.arange(len(self.rows) * self.topk * self.steps).view(-1, self.steps)

    def naive(self, step: int) -> list[int]:
        """Row ``step`` of the draft lists, element by element."""
        table, out = table_of(self.seed), []
        for b, (row, length) in enumerate(zip(self.rows, self.lengths, strict=True)):
            for k in range(self.topk):
                out += table[row, :length].tolist() + self.cache_loc[b * self.topk + k, : step + 1].tolist()
        return out

    def generate(self, kv_indices: Tensor, forwards: int) -> None:
        inputs = (table_of(self.seed), torch.tensor(self.rows), torch.tensor(self.lengths), self.cache_loc)
        generate_draft_decode_kv_indices(*inputs, self.topk, kv_indices, forwards)


batches = st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, WIDTH)), min_size=1, max_size=4).flatmap(
    lambda drawn: st.builds(
        Batch,
        rows=st.just([row for row, _ in drawn]),
        lengths=st.just([length for _, length in drawn]),
        topk=st.integers(1, 4),
        steps=st.integers(1, 5),
        seed=st.integers(0, 99),
    )
)


@given(batch=batches, dtype=st.sampled_from([torch.int32, torch.int64]))
@settings(max_examples=80)
def test_sequences_are_copied_one_after_another(batch: Batch, dtype: torch.dtype) -> None:
    table, lengths = table_of(batch.seed), torch.tensor(batch.lengths)
    kv_indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(torch.int32)
    kv_indices = torch.full((sum(batch.lengths) + 3,), -1, dtype=dtype)
    create_kv_indices(table, torch.tensor(batch.rows), lengths, kv_indptr, kv_indices)
    expected = torch.cat([table[row, :length] for row, length in zip(batch.rows, batch.lengths, strict=True)])
    assert kv_indices.tolist() == [*expected.tolist(), -1, -1, -1]


@pytest.mark.parametrize(
    ("row", "length", "start", "buffer"),
    [
        (ROWS, 1, 0, "req_to_token"),
        (-1, 1, 0, "req_to_token"),
        (2**55, 1, 0, "req_to_token"),
        (ROWS - 1, STRIDE + 1, 0, "req_to_token"),
        (1, 4, 7, "kv_indices"),
        (1, 4, -1, "kv_indices"),
    ],
)
def test_a_row_or_an_offset_outside_is_an_illegal_address(row: int, length: int, start: int, buffer: str) -> None:
    kv_indices = torch.zeros(10, dtype=torch.int32)
    with pytest.raises(IllegalAddress, match=rf"create_kv_indices\.{buffer}"):
        create_kv_indices(table_of(), torch.tensor([row]), torch.tensor([length]), torch.tensor([start, 0]), kv_indices)


@given(batch=batches, dtype=st.sampled_from([torch.int32, torch.int64]), spare=st.integers(0, 5))
@settings(max_examples=80)
def test_draft_lists_repeat_the_prefix_for_every_branch(batch: Batch, dtype: torch.dtype, spare: int) -> None:
    needed = sum(batch.lengths) * batch.topk + len(batch.rows) * batch.topk * batch.steps
    whole = torch.full((batch.steps + 1, needed + spare + 2), -1, dtype=dtype)
    kv_indices = whole[:, : needed + spare]
    batch.generate(kv_indices, batch.steps)
    for step in range(batch.steps):
        expected = batch.naive(step)
        assert kv_indices[step, : len(expected)].tolist() == expected
        assert bool((kv_indices[step, len(expected) :] == -1).all())
    assert bool((whole[batch.steps] == -1).all())
    assert bool((whole[:, needed + spare :] == -1).all())


# --- too small ---

BATCH = Batch([1, 2], [10, 12], topk=4, steps=3)  # row i needs 4·22 + 8·(i + 1): 96, 104


def undersized(width: int, rows: int, *, guards: bool = True, batch: Batch = BATCH) -> Arena:
    """Draft lists of that size, written."""
    layout = ArenaLayout(guards=guards)
    layout.add("draft.kv_indices", (rows, width), torch.int32)
    layout.add("draft.kv_indptr", (rows, 9), torch.int32)
    arena = layout.build(FillPolicy("zeros"), torch.device("cpu"))
    for name in ("draft.kv_indices", "draft.kv_indptr"):
        arena[name].fill_(-1)
    batch.generate(arena["draft.kv_indices"], batch.steps - 1)
    return arena


def test_a_row_too_short_runs_on_into_the_next_which_is_written_after_it() -> None:
    first, second = BATCH.naive(0), BATCH.naive(1)
    arena = undersized(100, rows=3)
    lists = arena["draft.kv_indices"]
    assert lists[0, :96].tolist() == first
    assert (lists[1].tolist(), lists[2, :4].tolist()) == (second[:100], second[100:])
    assert arena.check_guards() == [], "the spare last row takes it"
    lists = undersized(90, rows=4)["draft.kv_indices"]
    assert lists[0].tolist() == first[:90]
    assert lists[1].tolist() == second[:90], "row 1 was written over row 0's overrun"


@pytest.mark.parametrize(
    ("width", "rows", "overran", "overwritten"), [(50, 3, 4 * (50 + 104 - 150), False), (20, 2, 288, True)]
)
def test_the_last_row_runs_into_the_guard_which_names_it_and_beyond_lies_the_victim(
    width: int, rows: int, overran: int, overwritten: bool
) -> None:
    arena = undersized(width, rows)
    (found,) = arena.check_guards()
    assert (found.buffer, found.victim, found.first_byte) == ("draft.kv_indices", "draft.kv_indptr", 0)
    assert found.overran == overran
    assert bool((arena["draft.kv_indptr"] != -1).any()) is overwritten
    assert arena.check_guards() == []


def test_without_guards_the_next_buffer_is_overwritten_silently() -> None:
    arena = undersized(44, rows=3, guards=False)
    assert arena.check_guards() == []
    assert bool((arena["draft.kv_indptr"] != -1).any())


@pytest.mark.parametrize(
    ("width", "rows", "batch", "site"),
    [
        (10, 2, Batch([1] * 8, [20] * 8, topk=4, steps=3), r"kv_indices.*a buffer of 20 leave"),
        (400, 3, Batch([1, 4886055425], [3, 3], topk=1, steps=2), "req_to_token"),
    ],
)
def test_leaving_the_allocation_is_an_illegal_address(width: int, rows: int, batch: Batch, site: str) -> None:
    with pytest.raises(IllegalAddress, match=rf"generate_draft_decode_kv_indices\.{site}"):
        undersized(width, rows, batch=batch)


# --- page tables ---


@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=4), page=st.sampled_from([1, 2, 4, 16]), data=st.data()
)
@settings(max_examples=60)
def test_a_page_table_takes_every_page_sizeth_cell(rows: list[int], page: int, data: st.DataObject) -> None:
    table = table_of()
    pages = data.draw(st.integers(1, -(-WIDTH // page)))
    found = gather_page_table(table, torch.tensor(rows), pages, page)
    assert found.dtype == torch.int32
    assert found.tolist() == [[int(table[row, i * page]) // page for i in range(pages)] for row in rows]
    with pytest.raises(IllegalAddress, match=r"gather_page_table\.req_to_token"):
        gather_page_table(table, torch.tensor([*rows, ROWS]), 2, 4)


def branches(page: int, tail: int, steps: int, rows: int) -> Tensor:
    """Each branch on scattered pages of its own, its slots beginning ``tail`` into the first: [rows, steps]."""
    per_row = -(-(tail + steps) // page)
    pages = torch.randperm(rows * per_row, generator=torch.Generator().manual_seed(1)).view(rows, per_row) + 1
    cells = torch.arange(tail, tail + steps)
    return pages[:, cells // page] * page + cells % page


@given(page=st.sampled_from([1, 2, 4, 16, 256]), steps=st.integers(1, 8), rows=st.integers(1, 6), data=st.data())
@settings(max_examples=80)
def test_each_row_lists_its_pages_once_in_order(page: int, steps: int, rows: int, data: st.DataObject) -> None:
    cache_loc = branches(page, data.draw(st.integers(0, page - 1)), steps, rows)
    whole = torch.full((rows + 1, steps + 4), -1, dtype=torch.int32)  # the table is a slice that keeps its stride
    set_expand_page_table(cache_loc, page, whole[:, : steps + 1])
    for row in range(rows):
        expected = [key for key, _ in groupby(int(slot) // page for slot in cache_loc[row])]
        assert whole[row, : len(expected)].tolist() == expected
        assert bool((whole[row, len(expected) :] == -1).all())
    assert bool((whole[rows] == -1).all())


def test_a_row_with_more_pages_than_columns_runs_into_the_next_and_the_last_into_the_guard() -> None:
    """P = 2, S = 4 from an odd length: three pages for a row of two columns (SGLang PR 27360)."""
    layout = ArenaLayout(guards=True)
    layout.add("draft.expand_page_table.0", (3, 2), torch.int32)
    layout.add("draft.expand_cache_seqlens.0", (3,), torch.int32)
    arena = layout.build(FillPolicy("zeros"), torch.device("cpu"))
    table, cache_loc = arena["draft.expand_page_table.0"].fill_(-1), branches(2, 1, 4, 3)
    set_expand_page_table(cache_loc, 2, table)
    pages = (cache_loc[:, [0, 1, 3]] // 2).tolist()
    assert table[0].tolist() == pages[0][:2]
    assert int(table[1, 0]) in (pages[0][2], pages[1][0])
    (found,) = arena.check_guards()
    assert (found.buffer, found.victim) == ("draft.expand_page_table.0", "draft.expand_cache_seqlens.0")
    assert (found.first_byte, found.overran) == (0, 4)
    with pytest.raises(IllegalAddress, match=r"set_expand_page_table\.page_table: offsets 0\.\.4"):
        set_expand_page_table(branches(2, 1, 4, 2), 2, torch.zeros((2, 2), dtype=torch.int32))
