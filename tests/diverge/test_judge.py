"""What is rounding and what is the divergence, with the values in hand. The runs are made up, the model is shipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdebug.diverge.judge import Judgement, Pairs, judge
from specdebug.diverge.stream import Descriptor, RecordedStep
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
    return [
        [(LOGITS, [list(a), list(b)]), (CHOICE, [[each] for each in choice])],
        [(BONUS, [bonus, 8])],
    ]


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
