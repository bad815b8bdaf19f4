"""What is rounding and what is the divergence, with the values in hand. The runs are made up, the model is shipped."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specdebug.diverge.recording import Descriptor, RecordedStep, keep, kept
from specdebug.diverge.rounding import Judgement, Pairs, Place, Tensors, difference, explained, judge, tolerance
from specdebug.targets.options import EngineShape

LOGITS = Descriptor("draft_extend.logits", "bfloat16", (0, 1), (1, 1))
CHOICE = Descriptor("draft_extend.topk_index", "int64", (0, 1), (1, 1))
BONUS = Descriptor("draft.bonus", "int64", (0, 1), (1, 1))
Run = list[list[tuple[Descriptor, Any]]]
"""Calls of each step, with their tensors."""


def steps(run: Run) -> list[RecordedStep]:
    return [
        RecordedStep(
            number, ("a", "b"), tuple(d for d, _ in calls), [hash(str(row)) for _, rows in calls for row in rows]
        )
        for number, calls in enumerate(run, 1)
    ]


def judged(tmp_path: Path, left: Run, right: Run, dtype: str = "bfloat16") -> tuple[Judgement, int]:
    """With how often the arms were run again."""
    looks: list[Pairs] = []

    @contextmanager
    def look(pairs: Pairs) -> Iterator[tuple[Path, Path]]:
        folders = [tmp_path / f"{len(looks)}-{side}" for side in (0, 1)]
        looks.append(pairs)
        for side, (folder, run) in enumerate(zip(folders, (left, right), strict=True)):
            folder.mkdir()
            for part in (pair[side] for pair in pairs):
                if part is not None:
                    np.save(folder / f"{part.step}-{part.call}.npy", np.array(run[part.step - 1][part.call][1]))
        yield folders[0], folders[1]

    shape = EngineShape("tiny", None, "cpu", dtype, "triton", tree=(1, 3, 4))
    return judge(steps(left), steps(right), look, shape), len(looks)


def run(a: Sequence[float], b: Sequence[float], choice: Sequence[int], bonus: int = 5) -> Run:
    return [[(LOGITS, [list(a), list(b)]), (CHOICE, [[each] for each in choice])], [(BONUS, [bonus, 8])]]


def test_a_near_tie_parts_one_request_and_the_others_are_still_compared(tmp_path: Path) -> None:
    left = run([4.0, 3.98], [1.0, 2.0], [0, 1])
    answer, looks = judged(tmp_path, left, run([3.98, 4.0], [1.0, 2.0], [1, 1], bonus=6))
    assert (answer.first, looks) == (None, 1)
    assert [(each.site, each.owner) for each in answer.rounding.parted] == [("draft_extend.topk_index", "a")]
    assert answer.rounding.shares == 1
    right = run([3.98, 4.0], [1.0, 2.0], [1, 1])
    right[1][0][1][1] = 9
    (tmp_path / "again").mkdir()
    answer, looks = judged(tmp_path / "again", left, right)
    assert answer.first is not None
    assert (answer.first.site, answer.first.owner, looks) == ("draft.bonus", "b", 2)


def test_drafts_whose_grounds_are_not_shown_part_their_request_in_half_precision_alone(tmp_path: Path) -> None:
    tree = Descriptor("tree.retrieve_next_token", "int64", (0, 1), (1, 1))

    def drafted(first: int, bonus: int) -> Run:
        return [[(tree, [[first], [3]])], [(BONUS, [first, bonus])]]

    answer, _ = judged(tmp_path, drafted(1, 8), drafted(2, 8))
    assert answer.first is None
    assert [(each.site, each.owner) for each in answer.rounding.unseen] == [(tree.site, "a")]
    for number, dtype in enumerate(("bfloat16", "float32")):
        folder = tmp_path / str(number)
        folder.mkdir()
        answer, _ = judged(folder, drafted(1, 8), drafted(2, 9), dtype)
        assert answer.first is not None
        assert (answer.first.site, answer.first.owner) == [("draft.bonus", "b"), (tree.site, "a")][number]


@pytest.mark.parametrize(
    ("right", "dtype", "site"),
    [
        (run([4.0, 3.98], [1.0, 2.0], [1, 1]), "bfloat16", "draft_extend.topk_index"),  # changed after it was chosen
        (run([4.0, 4.9], [1.0, 2.0], [1, 1]), "bfloat16", "draft_extend.logits"),  # no rounding moves a logit so far
        (run([3.98, 4.0], [1.0, 2.0], [1, 1]), "float32", "draft_extend.logits"),
        (run([4.0, 3.98], [1.0, 2.0], [0, 1], bonus=6), "bfloat16", "draft.bonus"),  # nothing that it follows from
        (run([4.0, float("nan")], [1.0, 2.0], [0, 1]), "bfloat16", "draft_extend.logits"),
    ],
)
def test_faults_in_half_precision_are_found(tmp_path: Path, right: Run, dtype: str, site: str) -> None:
    answer, _ = judged(tmp_path, run([4.0, 3.98], [1.0, 2.0], [0, 1]), right, dtype)
    assert answer.first is not None
    assert (answer.first.site, answer.first.owner) == (site, "a")
    assert answer.rounding.parted == ()


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


@pytest.mark.parametrize(
    ("left", "right", "rounding"),
    [
        ([[1000.0, 0.001]], [[1000.0, 0.0011]], True),  # little beside the largest of its row
        ([[1000.0, 0.0], [0.001, 0.0]], [[1000.0, 0.0], [0.0011, 0.0]], False),  # much beside its own row's
        ([[1.0, np.nan]], [[1.0, 2.0]], False),
        ([[1.0, np.inf]], [[1.00001, np.inf]], True),
        ([[1.0, np.inf]], [[1.0, -np.inf]], False),
    ],
)
def test_rounding_is_measured_by_the_row(left: list[list[float]], right: list[list[float]], rounding: bool) -> None:
    found = difference(np.array(left), np.array(right))
    assert found is not None
    assert (found.gap <= 1e-4) is rounding


def test_integers_and_shapes_differ_infinitely() -> None:
    found = difference(np.array([[10**9]]), np.array([[10**9 + 1]]))
    assert found is not None
    assert found.gap == np.inf
    other = difference(np.zeros((2, 3)), np.zeros((2, 4)))
    assert other is not None
    assert (other.left, other.right, other.gap) == ([2, 3], [2, 4], np.inf)


@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_tolerances_grow_with_the_root_of_the_depth(dtype: str, unit: float) -> None:
    assert tolerance("verify.logits", dtype, 4, 256) == pytest.approx(8 * unit)
    assert tolerance("verify.logits", dtype, 16, 4096) == pytest.approx(16 * unit)
    assert tolerance("draft_extend.topk_p", dtype, 4, 256) == pytest.approx(80 * unit)


def test_tensors_are_kept_by_place(tmp_path: Path) -> None:
    keep(tmp_path, (3, 7), torch.tensor([[1.5, 2.0]], dtype=torch.bfloat16))
    found = kept(tmp_path, (3, 7))
    assert found is not None
    assert found.tolist() == [[1.5, 2.0]]
    assert kept(tmp_path, (3, 8)) is None


def test_not_finite_is_text_in_plain_data() -> None:
    found = difference(np.array([[np.nan]]), np.array([[1.0]]))
    assert found is not None
    assert (found.to_dict()["left"], found.to_dict()["gap"]) == ("nan", "inf")
