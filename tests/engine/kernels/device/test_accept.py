"""Walks on the device against the references, with probabilities whose sums are exact where they must agree."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.kernels import accept as reference
from specdebug.engine.textbook.speculative.tree import DraftCandidates, VerifyTree
from tests.engine.kernels.device.arenas import guarded_outputs
from tests.engine.statistics import chi_square_p_value
from tests.engine.textbook.speculative.trees import Shape, candidate_trees

pytest.importorskip("triton")

from specdebug.engine.kernels.triton import accept as twin

SHAPES = [Shape(1, 3, 4), Shape(2, 1, 2), Shape(3, 2, 5), Shape(2, 4, 11)]
VOCAB = 11
THRESHOLDS = [(1.0, 1.0), (1.0, 1.0), (0.5, 0.5)]


def links(tree: VerifyTree, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """tokens, next_token and next_sibling; a chain's links stay one row for all requests."""
    found = (tree.tokens, tree.retrieve_next_token, tree.retrieve_next_sibling)
    return tuple(
        tensor[:1].to(device).expand(tensor.shape) if tensor.stride(0) == 0 else tensor.to(device) for tensor in found
    )


def same(found: tuple[Tensor, Tensor, Tensor], expected: tuple[Tensor, Tensor, Tensor]) -> None:
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == right.dtype == torch.int32
        assert torch.equal(left.cpu(), right)


@st.composite
def trees(draw: st.DrawFn, vocab: int = VOCAB, max_batch: int = 2) -> tuple[VerifyTree, int]:
    """A batch of trees and their num_steps; paths may be longer than that."""
    shape = draw(st.sampled_from(SHAPES))
    batch = draw(st.integers(1, max_batch))
    candidates, _ = draw(candidate_trees(shape, batch=batch, vocab=vocab))
    tree = shape.builder().build(candidates, torch.zeros(batch, dtype=torch.int64), torch.arange(batch))
    return tree, max(shape.num_steps - draw(st.integers(0, 1)), 1)


@given(drawn=trees(vocab=3), seed=st.integers(0, 999))
@settings(max_examples=25)
def test_greedy_walks(device, drawn: tuple[VerifyTree, int], seed: int) -> None:
    tree, num_steps = drawn
    wanted = torch.randint(0, 3, tree.tokens.shape, generator=torch.Generator().manual_seed(seed))
    expected = reference.walk_greedy(*links(tree, torch.device("cpu")), wanted, num_steps)
    with guarded_outputs():
        same(twin.walk_greedy(*links(tree, device), wanted.to(device), num_steps), expected)


def exact_probs(shape: tuple[int, ...], seed: int) -> Tensor:
    """Rows of multiples of 1/64 that add up to 1, with some zeros among them."""
    generator = torch.Generator().manual_seed(seed)
    liking = torch.rand(shape, generator=generator).pow(3).view(-1, shape[-1])
    balls = torch.multinomial(liking, 64, replacement=True, generator=generator)
    counts = torch.zeros_like(liking).scatter_add_(1, balls, torch.ones(balls.shape))
    return (counts / 64).view(shape)


def same_samples(
    device: torch.device, tree: VerifyTree, probs: Tensor, coins: Tensor, steps: int, *thresholds: float, tile: int
) -> None:
    expected = reference.walk_sampling(*links(tree, torch.device("cpu")), probs, coins, steps, *thresholds)
    with mock.patch.object(twin, "_VOCAB_TILE", tile), guarded_outputs():
        same(twin.walk_sampling(*links(tree, device), probs.to(device), coins.to(device), steps, *thresholds), expected)


@given(
    drawn=trees(vocab=VOCAB),
    seed=st.integers(0, 999),
    thresholds=st.sampled_from(THRESHOLDS),
    tile=st.sampled_from([4, 4096]),
)
@settings(max_examples=30)
def test_sampled_walks(
    device, drawn: tuple[VerifyTree, int], seed: int, thresholds: tuple[float, float], tile: int
) -> None:
    """Coins fall on boundaries as often as between them."""
    tree, num_steps = drawn
    probs = exact_probs((*tree.tokens.shape, VOCAB), seed)
    coins = torch.randint(0, 128, (probs.shape[0], num_steps + 2), generator=torch.Generator().manual_seed(seed)) / 128
    same_samples(device, tree, probs, coins, num_steps, *thresholds, tile=tile)


SMALL = Shape(2, 2, 4)


def small_tree(batch: int = 1) -> VerifyTree:
    """Tokens 4 and 7 below the root, 2 below the first."""
    candidates = DraftCandidates(
        torch.tensor([[-1, 0, 1]]).expand(batch, -1),
        torch.tensor([[0, 1, 2]]).expand(batch, -1),
        torch.tensor([[4, 7, 2]]).expand(batch, -1),
    )
    zeros = torch.zeros(batch, dtype=torch.int64)
    return SMALL.builder().build(candidates, zeros, zeros)


@pytest.mark.parametrize("tile", [4, 4096])
@pytest.mark.parametrize("bonus", [0.0, 0.25, 0.999999])
def test_drafts_that_hold_all_mass_stay_candidates_when_a_coin_passes_them(device, tile: int, bonus: float) -> None:
    probs = torch.zeros(1, 4, VOCAB)
    probs[0, 0, 4], probs[0, 0, 7] = 0.25, 0.5  # a sum short of 1
    coins = torch.tensor([[0.9, 0.9, 0.9, bonus]])
    same_samples(device, small_tree(), probs, coins, 2, 1.0, 1.0, tile=tile)


@pytest.mark.parametrize("tile", [4, 4096])
@pytest.mark.parametrize("content", ["nan", "one nan", "zeros", "inf"])
def test_rows_that_are_no_distribution(device, content: str, tile: int) -> None:
    probs = torch.full((1, 4, VOCAB), 0.125)
    if content == "one nan":
        probs[:, :, 5] = float("nan")
    else:
        probs.fill_({"nan": float("nan"), "zeros": 0.0, "inf": float("inf")}[content])
    for coin in (0.0, 0.5):
        same_samples(device, small_tree(), probs, torch.full((1, 4), coin), 2, 1.0, 1.0, tile=tile)


def test_one_distribution_for_all_requests(device) -> None:
    """Probabilities that repeat one row in memory."""
    probs = exact_probs((1, 4, VOCAB), 3)
    coins = torch.tensor([[0.25, 0.5, 0.0, 0.75], [0.875, 0.25, 0.5, 0.125]])
    tree = small_tree(2)
    expected = reference.walk_sampling(*links(tree, torch.device("cpu")), probs.expand(2, -1, -1), coins, 2, 1.0, 1.0)
    spread = probs.to(device).expand(2, -1, -1)
    same(twin.walk_sampling(*links(tree, device), spread, coins.to(device), 2, 1.0, 1.0), expected)


def test_rows_with_gaps_between_elements_are_refused(device) -> None:
    tokens, child, sibling = links(small_tree(), device)
    gappy = torch.zeros(1, 8, dtype=torch.int64, device=device)[:, ::2]
    with pytest.raises(ValueError, match="rows must be contiguous"):
        twin.walk_greedy(tokens, child, sibling, gappy, 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_emitted_tokens_have_the_targets_distribution(device) -> None:
    batch = 20_000
    generator = torch.Generator().manual_seed(1)
    probs = torch.softmax(torch.randn(1, 4, VOCAB, generator=generator), dim=-1)
    coins = torch.rand(batch, 4, generator=generator).to(device)
    predict, accept_index, _ = twin.walk_sampling(
        *links(small_tree(batch), device), probs.to(device).expand(batch, -1, -1), coins, 2, 1.0, 1.0
    )
    tokens, reached = predict.view(batch, 4).cpu(), accept_index.cpu()
    first = Counter[object](tokens[:, 0].tolist())
    assert chi_square_p_value(first, dict(enumerate(probs[0, 0].tolist()))) > 1e-3
    below = (reached[:, 1] % 4 == 1) & (reached[:, 1] >= 0)
    second = Counter[object](tokens[below, 1].tolist())
    assert chi_square_p_value(second, dict(enumerate(probs[0, 1].tolist()))) > 1e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_vocabulary_of_many_blocks(device) -> None:
    """Counts over 2^24, so that every sum is exact in any order."""
    vocab, batch = 152_064, 4
    generator = torch.Generator().manual_seed(2)
    counts = torch.randint(0, 220, (batch, 4, vocab), generator=generator).float()
    counts[:, :, -1] += 2**24 - counts.sum(-1)
    coins = torch.rand(batch, 4, generator=generator)
    same_samples(device, small_tree(batch), counts / 2**24, coins, 2, 1.0, 1.0, tile=twin._VOCAB_TILE)
