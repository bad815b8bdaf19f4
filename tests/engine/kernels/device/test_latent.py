"""A token's row and queries between projections and attention, against the CPU's way."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.model.latent_rope import LatentRotary
from specdebug.engine.model.layers import Norm
from tests.interpreter import float_types
from tests.tolerance import rounding

pytest.importorskip("triton")

from specdebug.engine.kernels.triton.latent import absorb_and_store

CPU = torch.device("cpu")
EPS = 1e-6


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize(("heads", "latent", "part"), [(4, 32, 8), (1, 16, 2), (16, 64, 32), (9, 24, 6)])
@pytest.mark.parametrize("slots", [[], [3], [7, 0, 4]], ids=str)
def test_rows_are_normed_turned_and_stored_and_queries_absorbed_and_turned(device, dtype, heads, latent, part, slots):
    torch.manual_seed(0)
    count, width, nope = len(slots), latent + part, 5
    rotary = LatentRotary(part, 100.0, 50, CPU)
    gain = torch.rand(latent).to(dtype) + 0.5
    up = (torch.randn(heads, nope, latent) / nope**0.5).to(dtype)
    projected = torch.randn(count, heads * (nope + part) + width).to(dtype)
    queries = projected[:, : heads * (nope + part)].view(count, heads, nope + part)
    row = projected[:, -width:]
    positions = torch.arange(count) * 7
    absorbed, pool = torch.randn(count, heads, width).to(dtype), torch.randn(9, 1, width).to(dtype)
    expected_absorbed, expected_pool = absorbed.clone(), pool.clone()
    product = torch.einsum("nhd,hdc->nhc", queries[..., :nope].double(), up.double())
    expected_absorbed[..., :latent] = product.to(dtype)
    expected_absorbed[..., latent:] = rotary.turn(queries[..., nope:], rotary.at(positions))
    norm = Norm(gain, EPS)
    normed = norm.with_gain(row[:, :latent])
    expected_pool[slots] = torch.cat((normed, rotary.turn(row[:, latent:], rotary.at(positions))), 1).unsqueeze(1)

    wide = projected.to(device)  # slices of it, as a model has them
    there = [tensor.to(device) for tensor in (absorbed, pool)]
    absorb_and_store(
        wide[:, : heads * (nope + part)].view(count, heads, nope + part),
        up.to(device),
        wide[:, -width:],
        positions.to(device),
        rotary.flat_table.to(device),
        gain.to(device),
        EPS,
        *there,
        torch.tensor([[slot, 8] for slot in slots], dtype=torch.int64, device=device).reshape(-1, 2)[:, 0],
    )
    near = rounding(latent, dtype=dtype, size=4.0, roundings=2)
    torch.testing.assert_close(there[0].cpu(), expected_absorbed, **near)
    torch.testing.assert_close(there[1].cpu(), expected_pool, **near)
    untouched = torch.ones(9, dtype=torch.bool)
    untouched[slots] = False
    assert torch.equal(there[1].cpu()[untouched], pool[untouched])


def test_rows_that_do_not_lie_as_it_reads_them_are_refused(device):
    table = LatentRotary(2, 100.0, 4, CPU).flat_table.to(device)
    row, queries, up = (
        torch.ones(1, 6, device=device),
        torch.ones(1, 1, 5, device=device),
        torch.ones(1, 3, 4).to(device),
    )
    at, gain, pool = torch.zeros(1, dtype=torch.int64, device=device), torch.ones(4, device=device), row.view(1, 1, 6)
    wide = torch.ones(1, 12, device=device)[:, ::2]
    with pytest.raises(ValueError, match="must be adjacent"):
        absorb_and_store(queries, up, wide, at, table, gain, EPS, pool.clone(), pool.clone(), at)
    with pytest.raises(ValueError, match="must be adjacent"):
        absorb_and_store(queries, up, row, at, table.t().contiguous().t(), gain, EPS, pool.clone(), pool.clone(), at)
