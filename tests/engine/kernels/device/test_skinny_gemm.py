"""The product of a few rows on the device against float64, in every tile."""

from __future__ import annotations

import pytest
import torch

from tests.interpreter import float_types

pytest.importorskip("triton")

from specdebug.engine.kernels.triton.skinny_gemm import TILES, skinny_gemm, tile_for
from tests.tolerance import rounding

LOW = [dtype for dtype in float_types() if dtype is not torch.float32]


def operands(device, dtype, rows, size_in, size_out):
    torch.manual_seed(rows)
    x = torch.randn(rows, size_in).to(device, dtype)
    weight = (torch.randn(size_out, size_in) / size_in**0.5).to(device, dtype)
    return x, weight.t()


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES.keys())
@pytest.mark.parametrize("rows", [1, 6, 16])
@pytest.mark.parametrize(("size_in", "size_out"), [(512, 128), (300, 70), (24, 5), (1024, 130)])
def test_products_come_out_as_in_float64(device, dtype, tile, rows, size_in, size_out):
    x, weight = operands(device, dtype, rows, size_in, size_out)
    out = skinny_gemm(x, weight, tile=tile)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), x.double() @ weight.double(), **rounding(size_in, dtype=dtype))


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_a_residual_is_added_before_rounding_and_may_be_the_result(device, dtype):
    x, weight = operands(device, dtype, 3, 256, 100)
    base = torch.randn(3, 100).to(device, dtype)
    expected = base.double() + x.double() @ weight.double()
    apart = skinny_gemm(x, weight, base=base)
    torch.testing.assert_close(apart.double(), expected, **rounding(257, dtype=dtype))
    assert skinny_gemm(x, weight, base=base, out=base) is base
    assert torch.equal(base, apart)


def test_slices_are_read_and_written_where_they_lie(device):
    """As an EAGLE head's fc is: half of the inputs of a wider matrix."""
    x, weight = operands(device, torch.float16, 2, 128, 40)
    wide, before = torch.zeros(2, 60, dtype=torch.float16, device=device), x.clone()
    skinny_gemm(x[:, 64:], weight[64:], out=wide[:, 10:50])
    expected = x[:, 64:].double() @ weight[64:].double()
    torch.testing.assert_close(wide[:, 10:50].double(), expected, **rounding(64, dtype=x.dtype))
    assert not bool(wide[:, :10].any() or wide[:, 50:].any())
    assert torch.equal(x, before)


def test_narrow_products_have_narrow_tiles():
    assert all(tile_for(width) in TILES.values() for width in (1, 4096, 6144, 28672, 128256))
    assert tile_for(4096).columns < tile_for(6144).columns


def test_what_the_kernel_cannot_do_is_refused(device):
    x, weight = operands(device, torch.float16, 17, 32, 8)
    with pytest.raises(ValueError, match="at most 16 rows"):
        skinny_gemm(x, weight)
    with pytest.raises(ValueError, match="of bf16 or fp16"):
        skinny_gemm(x[:2].float(), weight.float())
    with pytest.raises(ValueError, match="adjacent along in"):
        skinny_gemm(x[:2], weight.contiguous())
