"""Which choices rounding explains: those that are right by what the arm itself computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdebug.diverge.choices import GROUNDS, Place, Tensors, explained, grounds
from specdebug.diverge.stream import Descriptor, RecordedStep

TOPK = 2


def arrays(tensors: dict[Place, Any]) -> Tensors:
    return {place: np.asarray(rows) for place, rows in tensors.items()}


def both(place: Place, one: dict[Place, Any], other: dict[Place, Any]) -> bool:
    forwards, backwards = (explained(place, (arrays(a), arrays(b)), TOPK) for a, b in ((one, other), (other, one)))
    assert forwards == backwards
    return forwards


@pytest.mark.parametrize(
    ("right", "token", "fine"),
    [
        ([[1.0, 3.0, 3.125]], 2, True),  # another token is the best there
        ([[1.0, 3.125, 3.125]], 2, True),  # as good as the other
        ([[1.0, 3.125, 3.0]], 2, False),  # the second best
        ([[1.0, 3.125, 3.0]], 7, False),  # no token at all
        ([[1.0, np.nan, 3.0]], 2, False),
    ],
)
def test_a_next_token_is_excused_if_it_is_best_in_its_own_arm(right: Any, token: int, fine: bool) -> None:
    place = ("sampler.next_token_ids", 0)
    left = {place: [1], ("target_prefill.logits", 0): [[1.0, 3.125, 3.0]]}
    assert both(place, left, {place: [token], ("target_prefill.logits", 0): right}) is fine


def test_nothing_is_excused_without_what_it_was_chosen_from() -> None:
    place = ("draft_extend.topk_index", 0)
    left = {place: [[1, 2]], ("draft_extend.logits", 0): [[1.0, 3.0, 2.0]]}
    assert not both(place, left, {place: [[2, 1]]})
    assert both(place, left, {**left, place: [[2, 1]]})  # the order of the two is nobody's
    assert not both(place, left, {**left, place: [[1, 1]]})
    assert not both(("draft.bonus", 0), {("draft.bonus", 0): [1]}, {("draft.bonus", 0): [2]})


def test_branches_are_chosen_from_their_own_forward() -> None:
    place = ("draft.select.choice", 1)
    scores = [[0.9, 0.1, *(0.5, 0.4, 0.3, 0.2), *(0.25, 0.125, 0.25, 0.0)]]  # roots, first forward, second
    organized = ("draft.organize.scores", 0)
    assert both(place, {place: [[0, 2]], organized: scores}, {place: [[2, 0]], organized: scores})
    assert not both(place, {place: [[0, 2]], organized: scores}, {place: [[0, 1]], organized: scores})


def test_candidates_are_the_best_of_all() -> None:
    place, organized = ("draft.organize.top_scores_index", 0), ("draft.organize.scores", 0)
    left = {place: [[0, 1, 2]], organized: [[0.9, 0.5, 0.25, 0.24]]}
    assert both(place, left, {place: [[0, 1, 3]], organized: [[0.9, 0.5, 0.24, 0.25]]})
    assert not both(place, left, {place: [[0, 1, 3]], organized: [[0.9, 0.5, 0.25, 0.24]]})


def test_tokens_of_a_forward_have_the_rank_of_their_branch() -> None:
    place = ("draft.forward.input_ids", 1)
    choice, logits = ("draft.select.choice", 0), ("draft.forward.logits", 0)
    left = {place: [3, 0], choice: [[0, 3]], logits: [[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 0.0, 0.0]]}
    right = {place: [2, 0], choice: [[0, 3]], logits: [[0.0, 1.0, 3.0, 2.0], [1.0, 2.0, 0.0, 0.0]]}
    assert both(place, left, right)
    assert not both(place, left, {**right, place: [2, 1]})
    assert not both(place, left, {**right, place: [2, 9]})


def test_tokens_of_the_tree_have_the_rank_of_their_candidate() -> None:
    place = ("draft.organize.draft_tokens", 0)
    chosen, logits = ("draft.organize.top_scores_index", 0), ("draft.forward.logits", 0)
    left = {place: [[5, 3]], chosen: [[0, 2]], logits: [[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 0.0, 0.0]]}
    right = {place: [[5, 2]], chosen: [[0, 2]], logits: [[0.0, 1.0, 3.0, 3.0], [1.0, 2.0, 0.0, 0.0]]}
    assert both(place, left, right)
    assert not both(place, left, {**right, place: [[6, 2]]})  # a root: chosen in the step before
    assert not both(place, left, {**right, place: [[5, 1]]})


def test_walks_part_where_both_have_chosen_the_best() -> None:
    place, logits = ("accept.predict", 0), ("verify.logits", 0)
    rows = [[0.0, 3.0, 2.9], [0.0, 1.0, 2.0], [0.0, 2.0, 1.0]]
    near = [[0.0, 2.9, 3.0], *rows[1:]]
    left = {place: [1, 2, 0], logits: rows}
    assert both(place, left, {place: [2, 0, 1], logits: near})
    assert not both(place, left, {place: [2, 0, 1], logits: rows})
    assert not both(place, left, {place: [2, 0, 2], logits: near})  # wrong after they part
    assert not both(place, left, {place: [0, 0, 0], logits: rows})  # the root is always accepted
    assert not both(place, left, left)


def test_grounds_are_the_requests_own() -> None:
    logits = Descriptor("verify.logits", "bfloat16", (0, 1), (6, 6))
    predict = Descriptor("accept.predict", "int32", (0, 1), (6, 6))
    bonus = Descriptor("draft.bonus", "int64", (0, 1), (1, 1))
    step = RecordedStep(3, ("a", "b"), (bonus, logits, predict), range(6))
    choice = next(part for part in step.parts() if part.owner == "b" and part.descriptor is predict)
    assert {place: (part.call, part.first_row) for place, part in grounds(choice, step).items()} == {
        ("verify.logits", 0): (1, 6),
        ("accept.predict", 0): (2, 6),
    }
    assert grounds(next(step.parts()), step) == {}
    assert choice.descriptor.site in GROUNDS
