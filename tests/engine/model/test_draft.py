"""A head's first layer: a token's share of it, as a table and as a computation, and its product with two norms."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.model import draft as draft_module
from specdebug.engine.model.draft import NormedPair, TokenShare
from specdebug.engine.model.layers import Norm
from specdebug.engine.model.linear import as_weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_norm", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_the_table_holds_what_is_computed_without_it(monkeypatch, dtype, with_norm, with_bias):
    torch.manual_seed(0)
    embedding, weight = torch.randn(20, 8).to(dtype), torch.randn(8, 5).to(dtype)
    norm = Norm(torch.rand(8).to(dtype) + 0.5, 1e-5) if with_norm else None
    bias = torch.randn(5).to(dtype) if with_bias else None
    ids = torch.tensor([3, 0, 19, 3])
    tabulated = TokenShare(embedding, norm, weight, bias)(ids)
    monkeypatch.setattr(draft_module, "MAX_TABLE_BYTES", 0)
    computed = TokenShare(embedding, norm, weight, bias)(ids)
    torch.testing.assert_close(tabulated, computed)
    rows = embedding[ids] if norm is None else norm(embedding[ids])
    # bfloat16 keeps 8 bits of each term, and two of them may nearly cancel
    slack = {} if dtype is torch.float32 else {"atol": 0.03, "rtol": 0.02}
    torch.testing.assert_close(computed, rows @ weight + (0 if bias is None else bias), **slack)


@pytest.mark.parametrize("table_bytes", [0, 1 << 20])
@pytest.mark.parametrize("bad", [-1, 20])
def test_an_id_outside_the_vocabulary_raises(monkeypatch, table_bytes, bad):
    monkeypatch.setattr(draft_module, "MAX_TABLE_BYTES", table_bytes)
    share = TokenShare(torch.zeros(20, 8), None, torch.zeros(8, 5), None)
    with pytest.raises(IndexError, match="out of range"):
        share(torch.tensor([bad]))


@pytest.mark.parametrize("table_bytes", [0, 1 << 20], ids=["computed", "tabulated"])
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
        ),
    ],
)
@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)], ids=str)
def test_a_normed_pair_is_the_product_of_both_norms_side_by_side(monkeypatch, dtype, relative, device, table_bytes):
    monkeypatch.setattr(draft_module, "MAX_TABLE_BYTES", table_bytes)
    generator = torch.Generator().manual_seed(0)
    embedding, hidden = (torch.randn(rows, 16, generator=generator).to(dtype) for rows in (20, 4))
    gains = [torch.rand(16, generator=generator).to(dtype) + 0.5 for _ in range(2)]
    stored = torch.randn(24, 32, generator=generator).to(dtype)  # as a checkpoint holds it: [out, in]
    ids = torch.tensor([3, 0, 19, 3])

    norms = [Norm(gain.to(device), 1e-5) for gain in gains]
    weight = as_weight(stored.to(device)).clone(memory_format=torch.preserve_format)  # gains may be folded into it
    found = NormedPair(embedding.to(device), *norms, weight)(ids.to(device), hidden.to(device))

    rows = [embedding[ids].double(), hidden.double()]
    normed = [
        x * (x.square().mean(1, True) + 1e-5).rsqrt() * gain.double() for x, gain in zip(rows, gains, strict=True)
    ]
    expected = torch.cat(normed, 1) @ stored.double().T
    assert found.dtype == dtype
    assert float((found.cpu().double() - expected).norm() / expected.norm()) < relative
