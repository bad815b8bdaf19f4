"""Index lists on the device against the references: the same bytes everywhere, also where a list is too short."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.kernels import kv_indices as reference
from tests.engine.kernels.device.arenas import guarded_outputs, memory, twin_arenas

pytest.importorskip("triton")

from specdebug.engine.kernels.triton import kv_indices as twin

ROWS, WIDTH, STRIDE = 5, 40, 43


@dataclass(frozen=True)
class Batch:
    rows: list[int]
    lengths: list[int]
    seed: int

    @property
    def table(self) -> Tensor:
        """int32 [ROWS, WIDTH], rows further apart than they are long; cells of either sign."""
        generator = torch.Generator().manual_seed(self.seed)
        cells = torch.randint(-1000, 2**31 - 1, (ROWS, STRIDE), generator=generator, dtype=torch.int32)
        return cells[:, :WIDTH]

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """table, req_pool_indices, lengths."""
        return self.table, torch.tensor(self.rows), torch.tensor(self.lengths)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    rows = draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=3))
    return Batch(rows, [draw(st.integers(0, WIDTH)) for _ in rows], draw(st.integers(0, 99)))


def on(device: torch.device, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Copies on ``device`` of the same strides."""
    return [
        torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).copy_(tensor)
        for tensor in tensors
    ]


def small_tiles():
    """Rows of many tiles and more tiles than programs, at sizes an interpreter can bear."""
    return mock.patch.multiple(twin, _TILE=8, _MAX_PROGRAMS=2)


@given(
    batch=batches(),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    index_dtype=st.sampled_from([torch.int32, torch.int64]),
    missing=st.sampled_from([0, 0, 3, 20]),
)
@settings(max_examples=40)
def test_sequences_are_copied(device, batch: Batch, dtype, index_dtype, missing: int) -> None:
    """With ``missing`` elements too few in the list, the rest lands behind it."""
    table, rows, lengths = batch.inputs
    kv_indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(index_dtype)
    sizes = {"kv_indices": ((max(sum(batch.lengths) - missing, 1),), dtype), "victim": ((40,), dtype)}
    here, there = twin_arenas(device, **sizes)
    reference.create_kv_indices(table, rows, lengths, kv_indptr, here["kv_indices"])
    with small_tiles():
        twin.create_kv_indices(*on(device, (table, rows, lengths, kv_indptr)), there["kv_indices"])
    assert torch.equal(memory(there["kv_indices"]), memory(here["kv_indices"]))
    damage = here.check_guards()
    assert there.check_guards() == damage
    assert (damage == []) is (missing == 0 or sum(batch.lengths) <= 1)


@given(
    batch=batches(),
    topk=st.sampled_from([1, 2, 4]),
    forwards=st.integers(0, 4),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    spare=st.sampled_from([0, 3, -1, -10, -50, -1000]),
)
@settings(max_examples=25)
def test_draft_lists(device, batch: Batch, topk: int, forwards: int, dtype, spare: int) -> None:
    """Rows with elements to spare, and rows too narrow by some: overruns end up as if forwards ran in order."""
    table, rows, lengths = batch.inputs
    branches = len(batch.rows) * topk
    longest = topk * sum(batch.lengths) + branches * forwards
    width = max(longest + spare, 1)
    slots = 10**6 + torch.arange(branches * (forwards + 2)).view(branches, -1)
    sizes = {
        "kv_indices": ((forwards + 1, width), dtype),
        "victim": ((longest,), dtype),
    }
    here, there = twin_arenas(device, **sizes)
    reference.generate_draft_decode_kv_indices(table, rows, lengths, slots, topk, here["kv_indices"], forwards)
    with small_tiles():
        twin.generate_draft_decode_kv_indices(
            *on(device, (table, rows, lengths, slots)), topk, there["kv_indices"], forwards
        )
    assert torch.equal(memory(there["kv_indices"]), memory(here["kv_indices"]))
    damage = here.check_guards()
    assert there.check_guards() == damage
    if spare >= 0:
        assert damage == []


@given(batch=batches(), page=st.sampled_from([1, 3, 16]), pages=st.integers(0, 40), tile=st.sampled_from([8, 1024]))
@settings(max_examples=40)
def test_page_tables(device, batch: Batch, page: int, pages: int, tile: int) -> None:
    """Cells of nobody may hold anything: negative ones divide as torch divides them."""
    pages = min(pages, WIDTH // page)
    table, rows, _ = batch.inputs
    expected = reference.gather_page_table(table, rows, pages, page)
    with mock.patch.object(twin, "_TILE", tile), guarded_outputs():
        found = twin.gather_page_table(*on(device, (table, rows)), pages, page)
        assert found.dtype == torch.int32
        assert torch.equal(found.cpu(), expected)


def test_a_row_before_the_table_is_read_where_it_would_be(device) -> None:
    whole = torch.arange(12, dtype=torch.int32)
    rows, lengths, starts = torch.tensor([-2, 1]), torch.tensor([3, 2]), torch.tensor([0, 3, 5])
    expected, found = torch.zeros(5, dtype=torch.int64), torch.zeros(5, dtype=torch.int64, device=device)
    reference.create_kv_indices(whole[6:].view(2, 3), rows, lengths, starts, expected)
    twin.create_kv_indices(whole.to(device)[6:].view(2, 3), *on(device, (rows, lengths, starts)), found)
    assert found.tolist() == expected.tolist() == [0, 1, 2, 9, 10]
