"""The worker v1's draft slots on the device against the reference, its programs in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.kernels.cases_v1 import UPSTREAM, DraftCase, draft_cases
from tests.engine.kernels.device.arenas import guarded_outputs

pytest.importorskip("triton")

from triton.runtime.interpreter import interpreter_builder

from specdebug.engine.kernels.triton import cache_locs, cache_locs_v1


@contextmanager
def programs_in_order(seed: int) -> Iterator[None]:
    """Interpreted programs of every launch run in another order; compiled ones already do as they like."""
    rng, order = random.Random(seed), {}
    set_dim, set_index = interpreter_builder.set_grid_dim, interpreter_builder.set_grid_idx

    def launch(*grid: int) -> None:
        places = list(product(*map(range, grid)))
        order.clear()
        order.update(zip(places, rng.sample(places, len(places)), strict=True))
        set_dim(*grid)

    def begin(*place: int) -> Any:
        return set_index(*order[place])

    with (
        mock.patch.object(interpreter_builder, "set_grid_dim", launch),
        mock.patch.object(interpreter_builder, "set_grid_idx", begin),
    ):
        yield


@given(case=draft_cases, seed=st.integers(0, 99))
@example(case=UPSTREAM, seed=0)
@example(case=UPSTREAM, seed=1)
@settings(max_examples=25)
def test_slots_and_branches_are_the_references_in_any_order(device, case: DraftCase, seed: int) -> None:
    table, rows, lens = case.table.to(device), case.rows.to(device), case.seq_lens.to(device)
    with programs_in_order(seed):
        cache_locs_v1.write_slots(
            table, rows, case.held_lens.to(device), case.offsets.to(device), case.out_cache_loc.to(device)
        )
        with guarded_outputs():
            found = cache_locs.assign_draft_cache_locs(table, rows, lens, **case.shape)
            assert found.out_cache_loc.tolist() == case.expected_branches()
    assert torch.equal(table.cpu(), case.expected_rows())


def test_more_slots_than_a_program_writes_are_all_written(device) -> None:
    slots = torch.arange(1, 1001)
    table = torch.full((3, 1100), -1, dtype=torch.int32)
    expected = table.clone()
    expected[2, 40:740], expected[1, 7:307] = slots[:700].int(), slots[700:].int()
    there = table.to(device)
    with programs_in_order(5):
        cache_locs_v1.write_slots(
            there,
            torch.tensor([2, 1], device=device),
            torch.tensor([40, 7], device=device),
            torch.tensor([0, 700, 1000], device=device),
            slots.to(device),
        )
    assert torch.equal(there.cpu(), expected)
