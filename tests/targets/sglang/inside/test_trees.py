"""The stand-ins of sgl-kernel: links, walks and renormalised probabilities, of trees small enough to write out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specdebug.targets.sglang.inside.trees import (
    build_tree_kernel_efficient,
    top_k_renorm_prob,
    top_p_renorm_prob,
    tree_speculative_sampling_target_only,
    verify_tree_greedy,
)

NODES = 4
PARENTS = torch.tensor([[-1, 0, 1], [-1, 0, 2]])
CHOSEN = torch.tensor([[0, 1, 2], [0, 2, 4]])
"""Two trees of topk 2, in which candidate c belongs to group c // 2, and PARENTS says which candidate a group
continues: in the first 1 and 2 are below the root and 3 below 1; the second is a chain."""


def build(mode: int, lengths: list[int]) -> dict[str, Tensor]:
    batch, width = len(lengths), NODES
    cells = sum(width * (length * (mode == 0) + width) for length in lengths)
    made = {
        "tree_mask": torch.ones(cells, dtype=torch.bool),
        "positions": torch.full((batch * width,), -7),
        "retrive_index": torch.full((batch, width), -7),
        "retrive_next_token": torch.full((batch, width), -7),
        "retrive_next_sibling": torch.full((batch, width), -7),
    }
    build_tree_kernel_efficient(
        PARENTS, CHOSEN, torch.tensor(lengths), **made, topk=2, depth=2, draft_token_num=width, tree_mask_mode=mode
    )
    return made


@pytest.mark.parametrize("mode", [0, 1])
def test_a_node_sees_the_context_and_its_ancestors(mode: int) -> None:
    lengths = [3, 5]
    made = build(mode, lengths)
    context = lengths[0] if mode == 0 else 0
    rows = made["tree_mask"][: NODES * (context + NODES)].view(NODES, -1)
    assert bool(rows[:, :context].all())
    assert rows[:, context:].tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, False, True, False],
        [True, True, False, True],
    ]


def test_packed_masks_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="has no mask of mode 2"):
        build(2, [1, 1])


def walked() -> dict[str, Tensor]:
    return {
        "predicts": torch.full((NODES,), -5, dtype=torch.int32),
        "accept_index": torch.full((1, 3), -1, dtype=torch.int32),
        "accept_token_num": torch.full((1,), -5, dtype=torch.int32),
    }


def test_the_path_that_the_target_wants_is_accepted() -> None:
    told = walked()
    links = build(1, [3, 5])
    verify_tree_greedy(
        **told,
        candidates=torch.tensor([[10, 11, 12, 13]]),
        retrive_index=links["retrive_index"][:1],
        retrive_next_token=links["retrive_next_token"][:1],
        retrive_next_sibling=links["retrive_next_sibling"][:1],
        target_predict=torch.tensor([[12, 0, 20, 0]]),
    )
    assert told["accept_index"].tolist() == [[0, 2, -1]]
    assert told["accept_token_num"].tolist() == [1]
    assert told["predicts"].tolist() == [12, -5, 20, -5]  # and nothing else is written


def test_a_node_s_place_is_the_one_that_the_index_says() -> None:
    """As in the kernels, which find what the target wants there, and write there: so an argument in another's place
    shows."""
    told, links = walked(), build(1, [3, 5])
    verify_tree_greedy(
        **told,
        candidates=torch.tensor([[10, 11, 12, 13]]),
        retrive_index=torch.tensor([[1, 0, 3, 2]]),
        retrive_next_token=links["retrive_next_token"][:1],
        retrive_next_sibling=links["retrive_next_sibling"][:1],
        target_predict=torch.tensor([[0, 12, 0, 20]]),
    )
    assert told["accept_index"].tolist() == [[1, 3, -1]]
    assert told["predicts"].tolist() == [-5, 12, -5, 20]


def test_drafts_with_probabilities_of_their_own_are_refused() -> None:
    links, probs = build(1, [3, 5]), torch.full((1, NODES, 30), 1 / 30)
    with pytest.raises(NotImplementedError, match="has no draft_probs that are not 0"):
        tree_speculative_sampling_target_only(
            **walked(),
            candidates=torch.tensor([[10, 11, 12, 13]]),
            **{name: links[name][:1] for name in ("retrive_index", "retrive_next_token", "retrive_next_sibling")},
            uniform_samples=torch.zeros(1, NODES),
            uniform_samples_for_final_sampling=torch.zeros(1),
            target_probs=probs,
            draft_probs=probs,
        )


def test_sampled_drafts_are_accepted_as_often_as_the_target_says() -> None:
    links = build(1, [3, 5])
    probs = torch.zeros(1, NODES, 30)
    probs[0, 0, [11, 12, 25]] = torch.tensor([0.5, 0.2, 0.3])
    probs[0, [1, 2, 3], 26] = 1.0
    generator, count, first = torch.Generator().manual_seed(0), 4000, []
    for _ in range(count):
        told = walked()
        tree_speculative_sampling_target_only(
            **told,
            candidates=torch.tensor([[10, 11, 12, 13]]),
            retrive_index=links["retrive_index"][:1],
            retrive_next_token=links["retrive_next_token"][:1],
            retrive_next_sibling=links["retrive_next_sibling"][:1],
            uniform_samples=torch.rand(1, NODES, generator=generator),
            uniform_samples_for_final_sampling=torch.rand(1, generator=generator),
            target_probs=probs,
            draft_probs=torch.zeros_like(probs),
        )
        first.append(int(told["predicts"][0]))
    for token, share in ((11, 0.5), (12, 0.2), (25, 0.3)):
        # seven standard deviations
        assert abs(first.count(token) / count - share) < 7 * (share * (1 - share) / count) ** 0.5


def test_top_k_and_top_p_keep_what_they_must_and_sum_to_one() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.25, 0.25, 0.25, 0.25]])
    torch.testing.assert_close(top_k_renorm_prob(probs[:1], torch.tensor([2])), torch.tensor([[0, 4 / 7, 3 / 7, 0]]))
    torch.testing.assert_close(top_k_renorm_prob(probs, torch.tensor([1 << 30, 1])), probs)
    torch.testing.assert_close(top_p_renorm_prob(probs[:1], torch.tensor([0.5])), torch.tensor([[0, 4 / 7, 3 / 7, 0]]))
    torch.testing.assert_close(top_p_renorm_prob(probs, 1.0), probs)
