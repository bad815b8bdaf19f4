"""Two parts merged on the device as the reference merges them."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.kernels.merge_pair import PartialAttention
from specdebug.engine.kernels.merge_pair import merge_pair as reference
from tests.interpreter import float_types

pytest.importorskip("triton")

from specdebug.engine.kernels.triton.merge_pair import merge_pair


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize(("batch", "q_len", "dim"), [(0, 3, 8), (2, 3, 8), (1, 5, 6), (3, 1, 64)])
def test_agrees_with_the_reference(device: torch.device, dtype: torch.dtype, batch: int, q_len: int, dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    outs = torch.randn(2, batch * q_len, 4, dim, generator=generator).to(dtype)
    logs = torch.randn(2, batch * q_len, 4, generator=generator) * 5
    if batch:
        outs[0, 0], logs[0, 0] = 0.0, float("-inf")  # no keys
        outs[:, 1, 1:2], logs[:, 1, 1] = 0.0, float("-inf")
        outs[1, 2, 2], logs[1, 2, 2] = float("nan"), float("-inf")
    parts = []
    for out, log, sequences, queries in zip(outs, logs, (batch, batch * q_len), (q_len, 1), strict=True):
        by_head = log.view(sequences, queries, 4).transpose(1, 2)
        parts.append(PartialAttention(out.view(sequences, queries, 4, dim), by_head))
    there = [PartialAttention(part.out.to(device), part.lse.contiguous().to(device)) for part in parts]
    near = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
    for moved in (there, [PartialAttention(part.out.to(device), part.lse.to(device)) for part in parts]):
        found = merge_pair(*moved).cpu()
        assert found.dtype == dtype
        torch.testing.assert_close(found, reference(*parts), rtol=near, atol=near, equal_nan=True)
