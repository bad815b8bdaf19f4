"""The likeliest tokens on the device, ties, NaN and infinities included, and two parts of attention merged."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.kernels import logits as reference
from specdebug.engine.kernels import merge_pair as merge_reference
from specdebug.engine.kernels.merge_pair import PartialAttention
from tests.interpreter import float_types
from tests.tolerance import EXP

pytest.importorskip("triton")

from specdebug.engine.kernels.triton import logits as twin
from specdebug.engine.kernels.triton import merging

NAN, INF = float("nan"), float("inf")
MAX_FUSED = reference.MAX_FUSED


def expected_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """By a stable sort of the logits themselves: those whose probabilities both round to 0 still differ."""
    ids = torch.sort(logits.float(), dim=-1, descending=True, stable=True).indices[:, :k]
    probs = torch.softmax(logits, -1, dtype=torch.float32).gather(1, ids)
    return probs, torch.where(probs.isnan(), torch.arange(k), ids)


def check(x: Tensor, device: torch.device, k: int | None = None) -> None:
    """The ``k`` likeliest of each row, or the likeliest alone by its two functions."""
    there = x.to(device)
    if k is None:
        assert twin.argmax(there).tolist() == reference.argmax(x).tolist()
    probs, ids = twin.softmax_top1(there) if k is None else twin.softmax_topk(there, k)
    wanted, at = reference.softmax_top1(x) if k is None else expected_topk(x, k)
    assert (probs.dtype, ids.dtype) == (torch.float32, torch.int64)
    assert ids.tolist() == at.tolist()
    torch.testing.assert_close(probs.cpu(), wanted, rtol=EXP, atol=1e-38, equal_nan=True)
    assert not bool(twin.tickets(there.device, x.shape[0]).any())


SHAPES = [(0, 7, 3), (1, 4, 4), (3, 100, 2), (2, 2048, 5), (1, 7000, MAX_FUSED), (17, 9000, 4), (1, 2049, 8)]
ALONE = [(0, 7), (1, 1), (3, 100), (2, 2048), (1, 7000), (20, 9000)]


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize(("rows", "width", "k"), [*SHAPES, *((*shape, None) for shape in ALONE)])
def test_agrees_with_torch(device: torch.device, dtype: torch.dtype, rows: int, width: int, k: int | None) -> None:
    generator = torch.Generator().manual_seed(width)
    check((torch.randn(rows, width, generator=generator) * 4).to(dtype), device, k)


@given(
    values=st.lists(st.sampled_from([0.0, -0.0, 1.5, -2.0, 3e38, -3e38, INF, -INF, NAN]), min_size=1, max_size=9),
    width=st.integers(16, 5000),
    places=st.integers(0, 2**32),
    rest=st.sampled_from([-INF, -1.0, 0.0]),
    k=st.sampled_from([None, None, None, 1, 2, 4, 7, MAX_FUSED]),
)
@settings(max_examples=100)
def test_the_first_of_equals_and_nan_before_all(
    device: torch.device, values: list[float], width: int, places: int, rest: float, k: int | None
) -> None:
    x = torch.full((2, width), rest)
    at = torch.randperm(width, generator=torch.Generator().manual_seed(places))[: len(values)]
    x[1, at] = torch.tensor(values)
    check(x, device, k)


def test_rows_are_read_where_they_lie(device: torch.device) -> None:
    wide = torch.randn(6, 5000)
    there = wide.to(device)
    for x in (wide[:, 100:3000], wide[::2], wide.t()[:50], wide[:, ::3]):
        view = there.as_strided(x.shape, x.stride(), x.storage_offset())
        assert twin.argmax(view).tolist() == x.argmax(-1).tolist()
        assert twin.softmax_topk(view, 3)[1].tolist() == expected_topk(x, 3)[1].tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 4, 64])
@pytest.mark.parametrize("k", [1, 2, 4, 10, MAX_FUSED, MAX_FUSED + 1])
def test_a_vocabulary_of_an_8b_model_in_a_graph(device: torch.device, rows: int, k: int) -> None:
    """Replayed over other logits, to the same bits however the programs end. k = 1: by the functions for one token."""
    static = torch.zeros(rows, 128256, dtype=torch.bfloat16, device=device)
    find = reference.softmax_top1 if k == 1 else lambda logits: reference.softmax_topk(logits, k)
    find(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        likeliest = reference.argmax(static)
        probs, ids = find(static)
    kept: list[Tensor] = []
    for seed in (0, 1, 0, 0):
        torch.manual_seed(seed)
        static.copy_(torch.randn(rows, 128256) * 3)
        graph.replay()
        assert torch.equal(likeliest, static.argmax(-1))
        wanted, at = expected_topk(static.cpu(), k)
        # sums of 128,256 in float32, each in its own order
        torch.testing.assert_close(probs.cpu(), wanted, rtol=1e-4, atol=0)
        if k <= MAX_FUSED:
            assert ids.tolist() == at.tolist()
        if seed == 0:
            kept.append(probs.clone())
    assert all(torch.equal(one, kept[0]) for one in kept)


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize(("batch", "q_len", "dim"), [(0, 3, 8), (2, 3, 8), (1, 5, 6), (3, 1, 64)])
def test_two_parts_merge_as_the_reference_merges_them(
    device: torch.device, dtype: torch.dtype, batch: int, q_len: int, dim: int
) -> None:
    generator = torch.Generator().manual_seed(dim)
    outs = torch.randn(2, batch * q_len, 4, dim, generator=generator).to(dtype)
    logs = torch.randn(2, batch * q_len, 4, generator=generator) * 5
    if batch:
        outs[0, 0], logs[0, 0] = 0.0, -INF  # no keys
        outs[:, 1, 1:2], logs[:, 1, 1] = 0.0, -INF
        outs[1, 2, 2], logs[1, 2, 2] = NAN, -INF
    parts = []
    for out, log, sequences, queries in zip(outs, logs, (batch, batch * q_len), (q_len, 1), strict=True):
        by_head = log.view(sequences, queries, 4).transpose(1, 2)
        parts.append(PartialAttention(out.view(sequences, queries, 4, dim), by_head))
    near = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
    for form in (Tensor.contiguous, lambda lse: lse):
        there = [PartialAttention(part.out.to(device), form(part.lse).to(device)) for part in parts]
        found = merging.merge_pair(*there).cpu()
        assert found.dtype == dtype
        torch.testing.assert_close(found, merge_reference.merge_pair(*parts), rtol=near, atol=near, equal_nan=True)
