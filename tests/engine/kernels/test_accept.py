"""Walks over one tree by hand; the distribution they must reproduce is tested where acceptance is used."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.kernels.accept import walk_greedy, walk_sampling

#     0 ── 1 (token 4) ── 3 (token 5)
#     └─── 2 (token 7)
TOKENS = torch.tensor([[3, 4, 7, 5]])
CHILD = torch.tensor([[1, 3, -1, -1]])
SIBLING = torch.tensor([[-1, 2, -1, -1]])
LINKS = (TOKENS, CHILD, SIBLING)


@pytest.mark.parametrize(
    ("wanted", "num_steps", "path"),
    [
        ([4, 5, 0, 6], 2, [0, 1, 3]),
        ([4, 5, 0, 6], 1, [0, 1]),
        ([7, 5, 8, 6], 2, [0, 2]),
        ([9, 5, 8, 6], 2, [0]),
    ],
)
def test_a_greedy_walk_takes_what_the_target_wants(wanted: list[int], num_steps: int, path: list[int]) -> None:
    predict, accept_index, correct = walk_greedy(*LINKS, torch.tensor([wanted]), num_steps)
    assert accept_index.tolist() == [path + [-1] * (num_steps + 1 - len(path))]
    assert predict.tolist() == [wanted[node] if node in path else 0 for node in range(4)]
    assert correct.tolist() == [len(path) - 1]
    assert predict.dtype == accept_index.dtype == correct.dtype == torch.int32


@pytest.mark.parametrize(
    ("coin", "bonus", "path", "tokens"),
    [
        (0.2, 0.0, [0, 1], [4, 0]),  # below the first draft's mass; token 5 has none, so the walk ends at node 1
        (0.3, 0.9, [0, 2], [7, 1]),  # between the first draft's mass and both
        (0.8, 0.4, [0], [0]),  # past both: tokens 0 and 1 share what is left
        (0.8, 0.6, [0], [1]),
    ],
)
def test_a_coin_picks_among_children_and_the_bonus_excludes_them(
    coin: float, bonus: float, path: list[int], tokens: list[int]
) -> None:
    probs = torch.zeros(1, 4, 8)
    probs[0, :, 0] = probs[0, :, 1] = 0.5
    probs[0, 0, [0, 1, 4, 7]] = 0.25
    coins = torch.tensor([[coin, coin, coin, bonus]])
    predict, accept_index, correct = walk_sampling(*LINKS, probs, coins, 2, 1.0, 1.0)
    assert accept_index.tolist() == [path + [-1] * (3 - len(path))]
    assert predict[path].tolist() == tokens
    assert correct.tolist() == [len(path) - 1]
