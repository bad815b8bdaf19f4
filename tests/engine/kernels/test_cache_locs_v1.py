"""Slots that the worker v1 allocates to draft with: where they go, and which of them a branch drafts into."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings

from specdebug.engine.errors import IllegalAddress
from specdebug.engine.kernels.cache_locs_v1 import assign_draft_cache_locs_v1, write_slots
from tests.engine.kernels.cases_v1 import UPSTREAM, DraftCase, draft_case, draft_cases


def assigned(case: DraftCase, table: torch.Tensor):
    return assign_draft_cache_locs_v1(
        table, case.rows, case.seq_lens, case.held_lens, case.offsets, case.out_cache_loc, **case.shape
    )


@settings(max_examples=200)
@example(case=UPSTREAM)
@given(case=draft_cases)
def test_every_slot_goes_to_its_row_and_s_of_them_to_each_branch(case: DraftCase) -> None:
    table = case.table.clone()
    locs = assigned(case, table)
    assert torch.equal(table, case.expected_rows())
    assert locs.out_cache_loc.tolist() == case.expected_branches()
    assert locs.out_cache_loc.dtype == torch.int64


@settings(max_examples=100)
@example(case=UPSTREAM)
@given(case=draft_cases)
def test_a_branch_drafts_into_slots_of_its_own_request_that_nobody_has_committed(case: DraftCase) -> None:
    table = case.table.clone()
    locs = assigned(case, table)
    drafted = locs.out_cache_loc.flatten().tolist()
    drafted += [] if locs.dup_tgt is None else locs.dup_tgt.tolist()
    assert len(set(drafted)) == len(drafted)
    topk = case.shape["topk"]
    for b, (row, length) in enumerate(zip(case.rows.tolist(), case.seq_lens.tolist(), strict=True)):
        mine = locs.out_cache_loc[b * topk : (b + 1) * topk].flatten().tolist()
        assert set(mine) <= set(table[row, length:].tolist())


def test_the_batch_of_upstream_is_one_whose_programs_race_there() -> None:
    """There a request's slots begin with cell L, and program b packs what it reads to [b·K·S, (b + 1)·K·S)."""
    topk, steps, page = (UPSTREAM.shape[name] for name in ("topk", "num_steps", "page_size"))
    starts, reads = [0], []
    for length in UPSTREAM.seq_lens.tolist():
        whole = -(-(length % page + steps) // page) * page
        reads.append({starts[-1] + branch * whole + step for branch in range(topk) for step in range(steps)})
        starts.append(starts[-1] + topk * whole - length % page)
    writes = [set(range(b * topk * steps, (b + 1) * topk * steps)) for b in range(len(reads))]
    raced = [(low, high) for high in range(3) for low in range(high) if reads[low] & writes[high]]
    assert raced == [(0, 1), (1, 2)]


def test_cells_beyond_the_table_are_an_illegal_address() -> None:
    case = draft_case([5, 6], topk=2, steps=3, page=4, seed=1)
    with pytest.raises(IllegalAddress, match=r"write_slots\.req_to_token"):
        write_slots(case.table, case.rows, torch.tensor([500, 500]), case.offsets, case.out_cache_loc)
