"""Rows of next-n layers on the device against the reference."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.kernels import mtp_rows as reference
from tests.engine.kernels.device.arenas import guarded_outputs
from tests.interpreter import float_types

pytest.importorskip("triton")

from specdebug.engine.kernels.triton import mtp_rows as twin

STATE_ROWS = 5


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize("tile", [8, 2048])
@given(
    lengths=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=4),
    layers=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=10)
def test_rows_are_those_of_the_reference(
    device, dtype, tile: int, lengths: list[tuple[int, int]], layers: int, seed: int
) -> None:
    """Lengths before the step, shorter and longer than there are layers, and what was accepted of three nodes."""
    generator = torch.Generator().manual_seed(seed)
    batch, nodes, size, earlier = len(lengths), 3, 20, layers - 1
    arguments = (
        torch.randint(0, 2**40, (batch * nodes,), generator=generator),
        torch.randn(batch * nodes, 30, generator=generator).to(dtype)[:, 3:23],
        torch.randint(0, 2**40, (STATE_ROWS, earlier), generator=generator),
        torch.randn(STATE_ROWS, earlier, size, generator=generator).to(dtype),
        torch.randint(0, STATE_ROWS, (batch,), generator=generator),
        *torch.tensor(lengths).T.contiguous(),
    )
    expected = reference.mtp_rows(*arguments)
    with mock.patch.object(twin, "_MAX_TILE", tile), guarded_outputs():
        found = twin.mtp_rows(*(one.to(device) for one in arguments))
        for name in reference.MTPRows._fields:
            left, right = getattr(found, name), getattr(expected, name)
            assert (left.dtype, left.shape) == (right.dtype, right.shape), name
            assert torch.equal(left.cpu(), right), name
