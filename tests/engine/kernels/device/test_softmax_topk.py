"""The likeliest few on the device against a stable sort of the logits, ties, NaN and infinities included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.kernels.softmax_topk import MAX_FUSED
from specdebug.engine.kernels.softmax_topk import softmax_topk as public
from tests.interpreter import float_types

pytest.importorskip("triton")

from specdebug.engine.kernels.triton import softmax_topk as twin
from specdebug.engine.kernels.triton.tickets import tickets
from tests.tolerance import EXP

NAN, INF = float("nan"), float("inf")


def expected(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """By the logits themselves: those whose probabilities both round to 0 still differ."""
    ids = torch.sort(logits.float(), dim=-1, descending=True, stable=True).indices[:, :k]
    probs = torch.softmax(logits, -1, dtype=torch.float32).gather(1, ids)
    return probs, torch.where(probs.isnan(), torch.arange(k), ids)


def check(logits: Tensor, k: int, device: torch.device) -> None:
    there = logits.to(device)
    probs, ids = twin.softmax_topk(there, k)
    assert (probs.dtype, ids.dtype) == (torch.float32, torch.int64)
    wanted, at = expected(logits, k)
    assert ids.tolist() == at.tolist()
    torch.testing.assert_close(probs.cpu(), wanted, rtol=EXP, atol=1e-38, equal_nan=True)
    assert not bool(tickets(there.device, logits.shape[0]).any())


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize(
    ("rows", "width", "k"),
    [(0, 7, 3), (1, 4, 4), (3, 100, 2), (2, 2048, 5), (1, 7000, MAX_FUSED), (17, 9000, 4), (1, 2049, 8)],
)
def test_agrees_with_torch(device: torch.device, dtype: torch.dtype, rows: int, width: int, k: int) -> None:
    generator = torch.Generator().manual_seed(width)
    check((torch.randn(rows, width, generator=generator) * 4).to(dtype), k, device)


@given(
    values=st.lists(st.sampled_from([0.0, -0.0, 1.5, -2.0, 3e38, -3e38, INF, -INF, NAN]), min_size=1, max_size=9),
    width=st.integers(16, 5000),
    places=st.integers(0, 2**32),
    rest=st.sampled_from([-INF, -1.0, 0.0]),
    k=st.sampled_from([2, 4, 7, MAX_FUSED]),
)
@settings(max_examples=60)
def test_the_first_of_equals_and_nan_where_there_is_no_softmax(
    device: torch.device, values: list[float], width: int, places: int, rest: float, k: int
) -> None:
    logits = torch.full((2, width), rest)
    at = torch.randperm(width, generator=torch.Generator().manual_seed(places))[: len(values)]
    logits[1, at] = torch.tensor(values)
    check(logits, k, device)


def test_rows_are_read_where_they_lie(device: torch.device) -> None:
    wide = torch.randn(6, 5000)
    there = wide.to(device)
    for x in (wide[:, 100:3000], wide[::2], wide.t()[:50], wide[:, ::3]):
        ids = twin.softmax_topk(there.as_strided(x.shape, x.stride(), x.storage_offset()), 3)[1]
        assert ids.tolist() == expected(x, 3)[1].tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rows", [1, 4, 64])
@pytest.mark.parametrize("k", [2, 4, 10, MAX_FUSED, MAX_FUSED + 1])
def test_a_vocabulary_of_an_8b_model_in_a_graph(device: torch.device, rows: int, k: int) -> None:
    """Replayed over other logits, to the same bits however the programs end."""
    static = torch.zeros(rows, 128256, dtype=torch.bfloat16, device=device)
    public(static, k)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        probs, ids = public(static, k)
    kept: list[Tensor] = []
    for seed in (0, 1, 0, 0):
        torch.manual_seed(seed)
        static.copy_(torch.randn(rows, 128256) * 3)
        graph.replay()
        wanted, at = expected(static.cpu(), k)
        # sums of 128,256 in float32, each in its own order
        torch.testing.assert_close(probs.cpu(), wanted, rtol=1e-4, atol=0)
        if k <= MAX_FUSED:
            assert ids.tolist() == at.tolist()
        if seed == 0:
            kept.append(probs.clone())
    assert all(torch.equal(one, kept[0]) for one in kept)
