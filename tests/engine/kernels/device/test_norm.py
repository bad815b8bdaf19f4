"""RMS norm on the device against float64, and against what transformers computes in low precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.interpreter import float_types

pytest.importorskip("triton")

from specdebug.engine.kernels.triton.norm import rms_norm, rms_norm_pair
from tests.tolerance import rounding


def exact(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * gain.double()


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize("width", [1, 24, 192, 4096])
@pytest.mark.parametrize("rows", [1, 5])
def test_rows_come_out_as_in_float64(device, dtype, width, rows):
    torch.manual_seed(0)
    x = (torch.randn(rows, width) * 3).to(device, dtype)
    gain = (torch.rand(width) + 0.5).to(device, dtype)
    out = rms_norm(x, gain, 1e-5)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), exact(x, gain, 1e-5), **rounding(width, dtype=dtype, roundings=2))


def test_low_precision_rounds_before_the_gain(device):
    """As transformers does; rounding once at the end would differ in one element of ten."""
    torch.manual_seed(0)
    x, gain = torch.randn(4, 1024).to(device, torch.float16), torch.rand(1024).to(device, torch.float16)
    normed = (x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt()).half()
    same = rms_norm(x, gain, 1e-5) == normed * gain
    assert float(same.float().mean()) > 0.99


def test_large_and_tiny_rows_do_not_leave_float32(device):
    x = torch.stack((torch.full((64,), 6e4), torch.full((64,), 1e-6))).to(device, torch.float16)
    gain = torch.ones(64, dtype=torch.float16, device=device)
    out = rms_norm(x, gain, 1e-5)
    assert torch.equal(out[0], gain)
    torch.testing.assert_close(out[1].double(), exact(x, gain, 1e-5)[1], rtol=2e-3, atol=0)


def test_rows_of_a_wider_tensor_are_read_where_they_lie(device):
    wide = torch.randn(3, 100, device=device)
    before = wide.clone()
    out = rms_norm(wide[:, 30:80], torch.ones(50, device=device), 0.1)
    torch.testing.assert_close(out, exact(wide[:, 30:80], torch.ones(50, device=device), 0.1).float())
    assert out.is_contiguous()
    assert torch.equal(wide, before)


def test_nothing_is_nothing(device):
    assert rms_norm(torch.empty(0, 8, device=device), torch.ones(8, device=device), 1e-5).shape == (0, 8)


def test_a_nan_stays_in_its_row(device):
    x = torch.ones(3, 40, device=device)
    x[1, 39] = float("nan")
    out = rms_norm(x, torch.ones(40, device=device), 1e-5)
    assert out.isnan().all(1).tolist() == [False, True, False]


def test_strided_elements_are_refused(device):
    with pytest.raises(ValueError, match="must be adjacent"):
        rms_norm(torch.ones(4, 6, device=device).t(), torch.ones(4, device=device), 1e-5)


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize("width", [1, 24, 4096])
def test_a_pair_is_two_norms_side_by_side(device, dtype, width):
    torch.manual_seed(0)
    x, wide = torch.randn(3, width).to(device, dtype), torch.randn(3, width + 5).to(device, dtype)
    y = wide[:, 5:]  # read where it lies
    x_gain, y_gain = (torch.rand(width).to(device, dtype) for _ in range(2))
    out = rms_norm_pair(x, x_gain, 1e-5, y, y_gain, 0.1)
    assert torch.equal(out, torch.cat([rms_norm(x, x_gain, 1e-5), rms_norm(y, y_gain, 0.1)], 1))


def test_what_is_no_pair_is_refused(device):
    x, gain = torch.ones(2, 4, device=device), torch.ones(4, device=device)
    for other in (torch.ones(3, 4, device=device), torch.ones(2, 4, device=device, dtype=torch.float16)):
        with pytest.raises(ValueError, match="are no pair"):
            rms_norm_pair(x, gain, 1e-5, other, gain, 1e-5)
    with pytest.raises(ValueError, match="must be adjacent"):
        rms_norm_pair(x, gain, 1e-5, torch.ones(4, 2, device=device).t(), gain, 1e-5)
