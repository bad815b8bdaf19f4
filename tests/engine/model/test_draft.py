"""The token's share of a head's first layer: a table and a computation that must agree."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.model import draft as draft_module
from specdebug.engine.model.draft import TokenShare
from specdebug.engine.model.layers import Norm


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
