"""The likeliest token on the device against torch on the CPU, ties, NaN and infinities included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.kernels import argmax as reference
from tests.interpreter import float_types

pytest.importorskip("triton")

from specdebug.engine.kernels.triton import argmax as twin
from specdebug.engine.kernels.triton.tickets import tickets
from tests.tolerance import EXP

NAN, INF = float("nan"), float("inf")


def check(x: Tensor, device: torch.device) -> None:
    there = x.to(device)
    assert twin.argmax(there).tolist() == reference.argmax(x).tolist()
    probs, ids = twin.softmax_top1(there)
    expected, at = reference.softmax_top1(x)
    torch.testing.assert_close(probs.cpu(), expected, rtol=EXP, atol=0, equal_nan=True)
    assert ids.tolist() == at.tolist()
    assert not bool(tickets(there.device, x.shape[0]).any())


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize(("rows", "width"), [(0, 7), (1, 1), (3, 100), (2, 2048), (1, 7000), (20, 9000)])
def test_agrees_with_torch(device: torch.device, dtype: torch.dtype, rows: int, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    check((torch.randn(rows, width, generator=generator) * 4).to(dtype), device)


@given(
    values=st.lists(st.sampled_from([0.0, -0.0, 1.5, -2.0, 3e38, -3e38, INF, -INF, NAN]), min_size=1, max_size=9),
    width=st.integers(9, 5000),
    places=st.integers(0, 2**32),
    rest=st.sampled_from([-INF, -1.0, 0.0]),
)
@settings(max_examples=60)
def test_the_first_of_equals_and_nan_before_all(
    device: torch.device, values: list[float], width: int, places: int, rest: float
) -> None:
    x = torch.full((2, width), rest)
    at = torch.randperm(width, generator=torch.Generator().manual_seed(places))[: len(values)]
    x[1, at] = torch.tensor(values)
    check(x, device)


def test_rows_are_read_where_they_lie(device: torch.device) -> None:
    wide = torch.randn(6, 5000)
    for x in (wide[:, 100:3000], wide[::2], wide.t()[:50], wide[:, ::3]):
        found = twin.argmax(x.to(device) if x.is_contiguous() else wide_view(wide, x, device))
        assert found.tolist() == x.argmax(-1).tolist()


def wide_view(wide: Tensor, x: Tensor, device: torch.device) -> Tensor:
    """x as a view of ``wide``'s copy on the device."""
    return wide.to(device).as_strided(x.shape, x.stride(), x.storage_offset())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rows", [1, 4, 64])
def test_a_vocabulary_of_an_8b_model_in_a_graph(device: torch.device, rows: int) -> None:
    """Replayed over other logits, to the same bits however the programs end."""
    static = torch.zeros(rows, 128256, dtype=torch.bfloat16, device=device)
    reference.softmax_top1(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ids = reference.argmax(static)
        probs, top = reference.softmax_top1(static)
    kept: list[Tensor] = []
    for seed in (0, 1, 0, 0):
        torch.manual_seed(seed)
        static.copy_(torch.randn(rows, 128256) * 3)
        graph.replay()
        assert torch.equal(ids, static.argmax(-1))
        assert torch.equal(top.squeeze(1), ids)
        expected = torch.softmax(static.float(), -1).amax(-1, keepdim=True)
        torch.testing.assert_close(probs, expected, rtol=EXP, atol=0)
        if seed == 0:
            kept.append(probs.clone())
    assert all(torch.equal(one, kept[0]) for one in kept)
