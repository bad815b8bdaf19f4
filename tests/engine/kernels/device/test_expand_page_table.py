"""Expand page tables on the device against the reference, rows too narrow included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.kernels.expand_page_table import set_expand_page_table
from tests.engine.kernels.device.arenas import memory, twin_arenas

pytest.importorskip("triton")

from specdebug.engine.kernels.triton import expand_page_table as twin


@given(
    page=st.sampled_from([1, 2, 3, 16]),
    columns=st.sampled_from([1, 2, 5, 6]),
    rows=st.integers(1, 5),
    width=st.integers(1, 6),
    spread=st.sampled_from([3, 40]),
    seed=st.integers(0, 99),
)
@settings(max_examples=30)
def test_tables_agree_byte_for_byte(
    device, page: int, columns: int, rows: int, width: int, spread: int, seed: int
) -> None:
    """Slots anywhere, of either sign. A row of too many pages runs into the next, which is written after it."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randint(-spread, spread, (rows, columns + 2), generator=generator)
    here, there = twin_arenas(device, expand_page_table=((rows, width), torch.int32), cache_seqlens=((8,), torch.int32))
    set_expand_page_table(wide[:, :columns], page, here["expand_page_table"])
    twin.set_expand_page_table(wide.to(device)[:, :columns], page, there["expand_page_table"])
    assert torch.equal(memory(there["expand_page_table"]), memory(here["expand_page_table"]))
    damage = here.check_guards()
    assert there.check_guards() == damage
    if columns <= width:
        assert damage == []


def test_spare_rows_and_columns_of_a_wider_table_are_left_alone(device) -> None:
    whole = torch.full((3, 8), -1, dtype=torch.int32, device=device)
    twin.set_expand_page_table(torch.tensor([[4, 5], [8, 12]], device=device), 4, whole[:, :3])
    assert whole[:, :3].tolist() == [[1, -1, -1], [2, 3, -1], [-1, -1, -1]]
    assert bool((whole[:, 3:] == -1).all())
