"""Draft and verify slots on the device against the references."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.kernels import cache_locs as reference
from tests.engine.kernels.device.arenas import guarded_outputs

pytest.importorskip("triton")

from specdebug.engine.kernels.triton import cache_locs as twin

WIDTH = 24


def table_of(rows: int, seed: int) -> Tensor:
    """int32 [rows + 1, WIDTH] with guard columns between rows, and a spare row for cells beyond the last."""
    cells = torch.randperm((rows + 4) * (WIDTH + 3), generator=torch.Generator().manual_seed(seed)) + 1
    return cells.to(torch.int32).view(-1, WIDTH + 3)[: rows + 1, :WIDTH]


def beside(device: torch.device, table: Tensor) -> Tensor:
    """The table on ``device``, with all of the memory around it."""
    whole = torch.as_strided(table, (table.untyped_storage().nbytes() // 4,), (1,), 0).to(device)
    return whole.as_strided(table.shape, table.stride(), table.storage_offset())


lengths_of = st.lists(st.integers(0, WIDTH), min_size=1, max_size=3)


@given(lengths=lengths_of, tokens=st.sampled_from([1, 4, 7]), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_verify_slots(device, lengths: list[int], tokens: int, seed: int) -> None:
    """Cells past the end of a row are the guard columns and the next row."""
    table = table_of(len(lengths), seed)
    rows, lens = torch.arange(len(lengths), 0, -1), torch.tensor(lengths)
    expected = reference.verify_cache_locs(table, rows, lens, tokens)
    with guarded_outputs():
        found = twin.verify_cache_locs(beside(device, table), rows.to(device), lens.to(device), tokens)
        assert found.dtype == torch.int64
        assert torch.equal(found.cpu(), expected)


@given(
    lengths=lengths_of,
    topk=st.sampled_from([1, 2, 4]),
    steps=st.sampled_from([1, 3, 5]),
    page=st.sampled_from([1, 2, 3, 8]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_draft_slots_and_duplicates(device, lengths: list[int], topk: int, steps: int, page: int, seed: int) -> None:
    """What there is to duplicate stands where the reference has it, once entries without use are left out."""
    table = table_of(len(lengths), seed)
    rows, lens = torch.arange(len(lengths), 0, -1), torch.tensor(lengths)
    shape = {"topk": topk, "num_steps": steps, "page_size": page}
    expected = reference.assign_draft_cache_locs(table, rows, lens, **shape)
    with guarded_outputs():
        slots, dup_src, dup_tgt = twin.assign_draft_cache_locs(
            beside(device, table), rows.to(device), lens.to(device), **shape
        )
        assert slots.dtype == torch.int64
        assert torch.equal(slots.cpu(), expected.out_cache_loc)
        if expected.dup_src is None:
            assert dup_src is None
            assert dup_tgt is None
            return
        assert dup_src.dtype == dup_tgt.dtype == torch.int64
        src, tgt = dup_src.cpu(), dup_tgt.cpu()
    assert src.numel() == tgt.numel() == len(lengths) * (topk - 1) * page
    used = torch.arange(page) < (lens % page).view(-1, 1, 1).expand(-1, topk - 1, 1)
    assert torch.equal(src[used.flatten()], expected.dup_src)
    assert torch.equal(tgt[used.flatten()], expected.dup_tgt)
    assert not bool(src[~used.flatten()].any())
    assert not bool(tgt[~used.flatten()].any())
