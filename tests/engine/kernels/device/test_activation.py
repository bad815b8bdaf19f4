"""SiLU(gate) * up on the device against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.interpreter import float_types

pytest.importorskip("triton")

from specdebug.engine.kernels.triton.activation import silu_mul
from tests.tolerance import rounding


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 96), (2, 1024), (6, 1500), (0, 8)])
def test_halves_come_out_as_in_float64(device, dtype, rows, width):
    torch.manual_seed(0)
    gate_up = (torch.randn(rows, 2 * width) * 4).to(device, dtype)
    gate, up = gate_up.double().chunk(2, 1)
    out = silu_mul(gate_up)
    assert out.dtype == dtype
    assert out.shape == (rows, width)
    # the smallest subnormals of float16 are 6e-8 apart
    near = rounding(8, dtype=dtype, size=16.0, roundings=2)
    torch.testing.assert_close(out.double(), F.silu(gate) * up, **near)


def test_low_precision_rounds_between_the_two_steps(device):
    torch.manual_seed(0)
    gate_up = torch.randn(4, 2048).to(device, torch.float16)
    gate, up = gate_up.chunk(2, 1)
    same = silu_mul(gate_up) == F.silu(gate.float()).half() * up
    assert float(same.float().mean()) > 0.99


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # numpy's, when interpreted
def test_extreme_gates(device):
    gate = torch.tensor([-float("inf"), -1e30, -200.0, 0.0, 200.0, 1e30, float("nan")], device=device)
    out = silu_mul(torch.cat((gate, torch.ones_like(gate))).unsqueeze(0))[0]
    assert torch.equal(out.isnan(), F.silu(gate).isnan())
    torch.testing.assert_close(out[1:6], F.silu(gate)[1:6])


def test_rows_of_a_wider_tensor_are_read_where_they_lie(device):
    wide = torch.randn(3, 50, device=device)
    gate, up = wide[:, 5:45].chunk(2, 1)
    torch.testing.assert_close(silu_mul(wide[:, 5:45]), F.silu(gate) * up)


def test_strided_elements_are_refused(device):
    with pytest.raises(ValueError, match="must be adjacent"):
        silu_mul(torch.ones(4, 6, device=device).t())
