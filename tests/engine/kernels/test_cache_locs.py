"""Slots of the draft loop and of a verify, reserved or just allocated, against the layout written out."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine import EngineConfig
from specdebug.engine.errors import IllegalAddress
from specdebug.engine.kernels.cache_locs import (
    assign_draft_cache_locs,
    assign_draft_cache_locs_v1,
    verify_cache_locs,
    write_slots,
)
from tests.engine.kernels.cases_v1 import UPSTREAM, DraftCase, draft_case, draft_cases


def paged_table(rows: int, pages: int, page_size: int) -> Tensor:
    """int32 [rows + 1, pages·page_size]: every row owns whole pages of its own, in random order; row 0 is zeros."""
    order = torch.randperm(rows * pages, generator=torch.Generator().manual_seed(0)) + 1
    slots = (order.view(rows, pages, 1) * page_size + torch.arange(page_size)).reshape(rows, -1)
    return torch.cat([torch.zeros(1, pages * page_size), slots]).to(torch.int32)


def branch_cells(length: int, branch: int, topk: int, num_steps: int, page_size: int) -> list[int]:
    """Row cells where ``branch`` of a request of ``length`` committed positions drafts."""
    if topk == 1 or page_size == 1:
        return [length + branch * num_steps + step for step in range(num_steps)]
    tail = length % page_size
    whole = -(-(tail + num_steps) // page_size) * page_size
    return [length - tail + branch * whole + tail + step for step in range(num_steps)]


@settings(max_examples=200, derandomize=True)
@given(
    topk=st.integers(1, 5),
    num_steps=st.integers(1, 7),
    page_size=st.sampled_from([1, 2, 4, 8]),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=3),
)
def test_branches_draft_where_the_layout_says(topk: int, num_steps: int, page_size: int, lengths: list[int]) -> None:
    nodes = num_steps + 1 if topk == 1 else 2
    speculative = {"num_steps": num_steps, "eagle_topk": topk, "num_draft_tokens": nodes}
    config = EngineConfig.from_dict({"page_size": page_size, "speculative": speculative})
    reserved = config.alloc_len_per_decode
    table = paged_table(len(lengths), -(-(max(lengths) + reserved) // page_size), page_size)
    rows = torch.arange(len(lengths), 0, -1)  # batch order is not row order
    shape = {"topk": topk, "num_steps": num_steps, "page_size": page_size}
    locs = assign_draft_cache_locs(table, rows, torch.tensor(lengths), **shape)
    assert tuple(locs.out_cache_loc.shape) == (len(lengths) * topk, num_steps)
    assert locs.out_cache_loc.dtype == torch.int64
    copies: list[tuple[int, int]] = []
    for b, (row, length) in enumerate(zip(rows.tolist(), lengths, strict=True)):
        tail = length % page_size
        for branch in range(topk):
            cells = branch_cells(length, branch, **shape)
            assert cells[-1] < length + reserved, "beyond what a decode step reserves"
            assert locs.out_cache_loc[b * topk + branch].tolist() == table[row, cells].tolist()
            if branch > 0:
                head = cells[0] - tail
                copies += [(int(table[row, length - tail + i]), int(table[row, head + i])) for i in range(tail)]
    written = locs.out_cache_loc.flatten().tolist()
    if topk == 1 or page_size == 1:
        assert locs.dup_src is locs.dup_tgt is None
    else:
        assert list(zip(locs.dup_src.tolist(), locs.dup_tgt.tolist(), strict=True)) == copies
        starts = locs.out_cache_loc[:, 0] - torch.tensor(lengths).repeat_interleave(topk) % page_size
        assert bool((starts % page_size == 0).all()), "a branch starts on a page of its own"
        written += locs.dup_tgt.tolist()
    assert len(set(written)) == len(written)
    assert min(written) >= page_size, "page 0 is padding"
    for row, length in zip(rows.tolist(), lengths, strict=True):
        assert not set(written) & set(table[row, :length].tolist()), "committed"


def test_guard_columns_count_in_the_row_stride() -> None:
    """A table with guard columns is a narrower view: cells must be found by stride, not by width."""
    table = torch.arange(48, dtype=torch.int32).view(4, 12)[:, :10]
    slots = verify_cache_locs(table, torch.tensor([2]), torch.tensor([1]), 2)
    assert slots.tolist() == [25, 26]
    locs = assign_draft_cache_locs(table, torch.tensor([2]), torch.tensor([1]), topk=2, num_steps=2, page_size=1)
    assert locs.out_cache_loc.tolist() == [[25, 26], [27, 28]]


def test_cells_beyond_the_table_are_an_illegal_address() -> None:
    table, row, length = paged_table(2, 3, 4), torch.tensor([2]), torch.tensor([10])
    with pytest.raises(IllegalAddress, match="assign_draft_cache_locs"):
        assign_draft_cache_locs(table, row, length, topk=3, num_steps=5, page_size=4)
    with pytest.raises(IllegalAddress, match="verify_cache_locs"):
        verify_cache_locs(table, row, length, 4)
    case = draft_case([5, 6], topk=2, steps=3, page=4, seed=1)
    with pytest.raises(IllegalAddress, match=r"write_slots\.req_to_token"):
        write_slots(case.table, case.rows, torch.tensor([500, 500]), case.offsets, case.out_cache_loc)


@settings(max_examples=200)
@example(case=UPSTREAM)
@given(case=draft_cases)
def test_v1_puts_every_slot_in_its_row_and_s_of_them_in_each_branch(case: DraftCase) -> None:
    table = case.table.clone()
    allocated = (case.held_lens, case.offsets, case.out_cache_loc)
    locs = assign_draft_cache_locs_v1(table, case.rows, case.seq_lens, *allocated, **case.shape)
    assert torch.equal(table, case.expected_rows())
    assert locs.out_cache_loc.tolist() == case.expected_branches()
    assert locs.out_cache_loc.dtype == torch.int64
    drafted = locs.out_cache_loc.flatten().tolist()
    drafted += [] if locs.dup_tgt is None else locs.dup_tgt.tolist()
    assert len(set(drafted)) == len(drafted)
    topk = case.shape["topk"]
    for b, (row, length) in enumerate(zip(case.rows.tolist(), case.seq_lens.tolist(), strict=True)):
        mine = locs.out_cache_loc[b * topk : (b + 1) * topk].flatten().tolist()
        assert set(mine) <= set(table[row, length:].tolist()), "not the request's own, or committed"
