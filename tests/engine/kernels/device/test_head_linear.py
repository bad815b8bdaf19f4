"""A product for each head on the device, against float64."""

from __future__ import annotations

import pytest
import torch

from tests.interpreter import float_types
from tests.tolerance import rounding

pytest.importorskip("triton")

from specdebug.engine.kernels.triton.head_linear import head_linear


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize("rows", [0, 1, 5, 70])
@pytest.mark.parametrize(("size_in", "size_out"), [(24, 130), (130, 24), (16, 16)])
@pytest.mark.parametrize("turned", [False, True])
def test_each_head_is_multiplied_where_it_lies(device, dtype, rows, size_in, size_out, turned):
    torch.manual_seed(2)
    heads = 3
    wide = torch.randn(rows, heads, size_in + 6).to(dtype)
    weight = (torch.randn(heads, size_in, size_out) / size_in**0.5).to(dtype)
    expected = torch.einsum("nhi,hio->nho", wide[..., :size_in].double(), weight.double())
    there = weight.to(device)
    if turned:
        there = there.transpose(1, 2).contiguous().transpose(1, 2)
    out = torch.zeros(rows, heads, size_out + 4, dtype=dtype, device=device)
    found = head_linear(wide.to(device)[..., :size_in], there, out[..., :size_out])
    torch.testing.assert_close(found.double().cpu(), expected, **rounding(size_in, dtype=dtype, size=4.0))
    assert not bool(out[..., size_out:].any())


def test_elements_of_a_head_must_be_adjacent(device):
    x, weight = torch.zeros(2, 3, 4, device=device), torch.zeros(3, 4, 4, device=device)
    with pytest.raises(ValueError, match="elements of a head must be adjacent"):
        head_linear(x, weight, torch.zeros(2, 4, 3, device=device).transpose(1, 2))
