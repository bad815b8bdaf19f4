"""Index lists against loops over single elements; and what an undersized list overruns."""

from __future__ import annotations

from dataclasses import dataclass

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
)
from specdebug.engine.memory.arena import Arena, ArenaLayout, FillPolicy

ROWS, WIDTH, STRIDE = 6, 20, 23


def _table(seed: int = 0) -> Tensor:
    """Distinct slots, rows further apart than they are long."""
    cells = torch.randperm(ROWS * STRIDE, generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    return cells.view(ROWS, STRIDE)[:, :WIDTH]


@dataclass(frozen=True)
class Batch:
    rows: list[int]
    lengths: list[int]
    topk: int
    steps: int
    seed: int

    @property
    def cache_loc(self) -> Tensor:
        count = len(self.rows) * self.topk * self.steps
        return 1000 + torch.arange(count).view(-1, self.steps)

    def naive(self, table: Tensor, step: int) -> list[int]:
        """Row ``step`` of the draft lists, element by element."""
        out = []
        for b, (row, length) in enumerate(zip(self.rows, self.lengths, strict=True)):
            for k in range(self.topk):
                for position in range(length):
                    out.append(int(table[row, position]))
                for j in range(step + 1):
                    out.append(int(self.cache_loc[b * self.topk + k, j]))
        return out


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    rows = draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=4))
    lengths = [draw(st.integers(0, WIDTH)) for _ in rows]
    return Batch(rows, lengths, draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(0, 99)))


@given(batch=batches(), dtype=st.sampled_from([torch.int32, torch.int64]))
@settings(max_examples=80)
def test_sequences_are_copied_one_after_another(batch: Batch, dtype: torch.dtype) -> None:
    table, lengths = _table(batch.seed), torch.tensor(batch.lengths)
    kv_indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(torch.int32)
    total = sum(batch.lengths)
    kv_indices = torch.full((total + 3,), -1, dtype=dtype)
    create_kv_indices(table, torch.tensor(batch.rows), lengths, kv_indptr, kv_indices)
    expected = [
        int(table[row, position])
        for row, length in zip(batch.rows, batch.lengths, strict=True)
        for position in range(length)
    ]
    assert kv_indices.tolist() == [*expected, -1, -1, -1]


def test_sequences_may_lie_anywhere_in_the_list() -> None:
    table = _table()
    kv_indices = torch.full((12,), -1)
    create_kv_indices(table, torch.tensor([2, 1]), torch.tensor([3, 2]), torch.tensor([5, 0, 99]), kv_indices)
    first, second = table[2, :3].tolist(), table[1, :2].tolist()
    assert kv_indices.tolist() == [*second, -1, -1, -1, *first, -1, -1, -1, -1]


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
        create_kv_indices(_table(), torch.tensor([row]), torch.tensor([length]), torch.tensor([start, 0]), kv_indices)


@given(batch=batches(), dtype=st.sampled_from([torch.int32, torch.int64]), spare=st.integers(0, 5))
@settings(max_examples=80)
def test_draft_lists_repeat_the_prefix_for_every_branch(batch: Batch, dtype: torch.dtype, spare: int) -> None:
    table = _table(batch.seed)
    needed = sum(batch.lengths) * batch.topk + len(batch.rows) * batch.topk * batch.steps
    whole = torch.full((batch.steps + 1, needed + spare + 2), -1, dtype=dtype)
    kv_indices = whole[:, : needed + spare]
    generate_draft_decode_kv_indices(
        table,
        torch.tensor(batch.rows),
        torch.tensor(batch.lengths),
        batch.cache_loc,
        batch.topk,
        kv_indices,
        batch.steps,
    )
    for step in range(batch.steps):
        expected = batch.naive(table, step)
        assert kv_indices[step, : len(expected)].tolist() == expected
        assert bool((kv_indices[step, len(expected) :] == -1).all())
    assert bool((whole[batch.steps] == -1).all())
    assert bool((whole[:, needed + spare :] == -1).all())


# --- too small ---


def _undersized(width: int, rows: int, *, guards: bool = True) -> Arena:
    layout = ArenaLayout(guards=guards)
    layout.add("draft.kv_indices", (rows, width), torch.int32)
    layout.add("draft.kv_indptr", (rows, 9), torch.int32)
    arena = layout.build(FillPolicy("zeros"), torch.device("cpu"))
    arena["draft.kv_indices"].fill_(-1)
    arena["draft.kv_indptr"].fill_(-1)
    return arena


BATCH = Batch([1, 2], [10, 12], topk=4, steps=3, seed=0)  # row i needs 4·22 + 8·(i + 1): 96, 104


def _generate(arena: Arena, batch: Batch = BATCH) -> None:
    generate_draft_decode_kv_indices(
        _table(),
        torch.tensor(batch.rows),
        torch.tensor(batch.lengths),
        batch.cache_loc,
        batch.topk,
        arena["draft.kv_indices"],
        batch.steps - 1,
    )


def test_a_row_too_short_runs_on_into_the_next_which_is_written_after_it() -> None:
    arena = _undersized(100, rows=3)
    _generate(arena)
    table, lists = _table(), arena["draft.kv_indices"]
    assert lists[0, :96].tolist() == BATCH.naive(table, 0)
    assert lists[1].tolist() == BATCH.naive(table, 1)[:100]
    assert lists[2, :4].tolist() == BATCH.naive(table, 1)[100:]
    assert arena.check_guards() == [], "the spare last row takes it"


def test_an_earlier_row_loses_its_tail_to_the_next() -> None:
    arena = _undersized(90, rows=4)
    _generate(arena)
    table, lists = _table(), arena["draft.kv_indices"]
    assert lists[0].tolist() == BATCH.naive(table, 0)[:90]
    assert lists[1].tolist() == BATCH.naive(table, 1)[:90], "row 1 was written over row 0's overrun"


def test_the_last_row_runs_into_the_guard_which_names_it() -> None:
    arena = _undersized(50, rows=3)
    _generate(arena)
    (found,) = arena.check_guards()
    assert (found.buffer, found.victim) == ("draft.kv_indices", "draft.kv_indptr")
    assert (found.first_byte, found.overran) == (0, 4 * (50 + 104 - 150))
    assert bool((arena["draft.kv_indptr"] == -1).all())
    assert arena.check_guards() == []


def test_beyond_the_guard_lies_the_victim() -> None:
    arena = _undersized(20, rows=2)
    _generate(arena)
    (found,) = arena.check_guards()
    assert found.overran >= 256
    assert bool((arena["draft.kv_indptr"] != -1).any())


def test_without_guards_the_next_buffer_is_overwritten_silently() -> None:
    arena = _undersized(44, rows=3, guards=False)
    _generate(arena)
    assert arena.check_guards() == []
    assert bool((arena["draft.kv_indptr"] != -1).any())


def test_leaving_the_arena_is_an_illegal_address() -> None:
    arena = _undersized(10, rows=2)
    with pytest.raises(IllegalAddress, match=r"generate_draft_decode_kv_indices\.kv_indices.*a buffer of 20 leave"):
        _generate(arena, Batch([1] * 8, [20] * 8, topk=4, steps=3, seed=0))


def test_a_row_of_nobody_is_an_illegal_address() -> None:
    arena = _undersized(400, rows=3)
    with pytest.raises(IllegalAddress, match=r"generate_draft_decode_kv_indices\.req_to_token"):
        _generate(arena, Batch([1, 4886055425], [3, 3], topk=1, steps=2, seed=0))


# --- page tables ---


@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=4),
    page=st.sampled_from([1, 2, 4, 16]),
    data=st.data(),
)
@settings(max_examples=60)
def test_a_page_table_takes_every_page_sizeth_cell(rows: list[int], page: int, data: st.DataObject) -> None:
    table = _table()
    pages = data.draw(st.integers(1, -(-WIDTH // page)))
    found = gather_page_table(table, torch.tensor(rows), pages, page)
    assert found.dtype == torch.int32
    assert found.tolist() == [[int(table[row, i * page]) // page for i in range(pages)] for row in rows]


def test_a_page_table_of_a_row_outside_is_an_illegal_address() -> None:
    with pytest.raises(IllegalAddress, match=r"gather_page_table\.req_to_token"):
        gather_page_table(_table(), torch.tensor([1, ROWS]), 2, 4)
