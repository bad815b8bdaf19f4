"""What is prefetched lies inside the weight and is asked for once; results do not depend on it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from specdebug.engine.kernels.triton.activation import silu_mul
from specdebug.engine.kernels.triton.norm import rms_norm
from specdebug.engine.kernels.triton.prefetch import FIRST_WAVE, NOTHING, PART, parts_of, prefetch_of
from specdebug.engine.kernels.triton.rope import rotate


def weight_of(size_in: int, size_out: int, device: torch.device, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randn(size_out, size_in, device=device).to(dtype).t()


@given(outputs=st.integers(0, 200_000), row_bytes=st.integers(0, 60_000), budget=st.integers(0, 32 << 20))
def test_every_output_gets_the_same_share_of_the_budget(outputs: int, row_bytes: int, budget: int) -> None:
    count, parts = parts_of(outputs, row_bytes, budget)
    assert count == min(outputs, FIRST_WAVE)
    assert parts * PART <= row_bytes
    assert count * parts * PART <= budget
    if count and parts < row_bytes // PART:
        assert count * (parts + 1) * PART > budget


def test_nothing_is_prefetched_without_a_cache_to_fetch_into() -> None:
    cpu = torch.device("cpu")
    assert prefetch_of(None, 1, 128, 1 << 20) is NOTHING
    assert prefetch_of(weight_of(256, 256, cpu), 1, 128, 1 << 20) is NOTHING


@pytest.mark.parametrize("rows", [1, 5])
def test_results_do_not_depend_on_it(device: torch.device, rows: int) -> None:
    """The small kernels as a layer calls them, with and without; on a GPU of compute capability 9 they prefetch."""
    then = weight_of(1024, 1024, device)
    before = then.clone()
    x = torch.randn(rows, 1024, device=device).half()
    gain = torch.rand(1024, device=device).half()
    assert torch.equal(rms_norm(x, gain, 1e-5, then), rms_norm(x, gain, 1e-5))
    gate_up = torch.randn(rows, 4096, device=device).half()
    assert torch.equal(silu_mul(gate_up, then), silu_mul(gate_up))
    table = torch.randn(8, 256, device=device)
    positions = torch.arange(rows, device=device)
    turned, plain = x.clone(), x.clone()
    rotate(turned, positions, table, 6, 128, then)
    rotate(plain, positions, table, 6, 128)
    assert torch.equal(turned, plain)
    assert not torch.equal(turned, x)
    assert torch.equal(then, before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_weight_is_prefetched_where_the_device_can(device: torch.device) -> None:
    if torch.cuda.get_device_capability(device) < (9, 0):
        pytest.skip("needs compute capability 9.0")
    found = prefetch_of(weight_of(4096, 4096, device), 4, 256, 8 << 20)
    assert found.weight is not None
    assert (found.stride, found.parts, found.programs) == (8192, 8, 128)
    refused = [
        prefetch_of(weight_of(4096, 4096, device), 17, 256, 8 << 20),
        prefetch_of(weight_of(4096, 4096, device).contiguous(), 4, 256, 8 << 20),
        prefetch_of(weight_of(4096, 4096, device)[1:], 4, 256, 8 << 20),
        prefetch_of(weight_of(100, 4096, device), 4, 256, 8 << 20),
    ]
    assert all(one is NOTHING for one in refused)
