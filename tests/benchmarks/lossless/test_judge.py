"""The judge: equal texts are same, near-ties are told apart from wrong tokens by the float32 model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from benchmarks.lossless.draw import Ask
from benchmarks.lossless.judge import judge
from benchmarks.lossless.reference import HuggingFace
from specdebug.engine import Request, SamplingParams
from specdebug.run.oracles.lossless import TIE_MARGIN
from tests.engine.checkpoints import make_target

WANTED = [3, 1, 4, 1, 5, 2]


class Table:
    """A model whose logits at a position are 10 for the token of a text, what is given for others, and else 0."""

    def __init__(self, text: Sequence[int], others: dict[tuple[int, int], float] | None = None) -> None:
        self.text, self.others = list(text), others or {}

    def row(self, position: int) -> torch.Tensor:
        row = torch.zeros(8)
        row[self.text[position]] = 10.0
        for (where, token), logit in self.others.items():
            if where == position:
                row[token] = logit
        return row

    def expected(self, prompt: Sequence[int], count: int, stop: Sequence[int]) -> list[int]:
        return HuggingFace.expected(self, prompt, count, stop)  # type: ignore[arg-type]

    _length = len(WANTED)

    def continuation(self, prompt: Sequence[int]) -> list[int]:
        return self.text

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        return self.row(len(ids) - 2)

    def judge(self, ids: Sequence[int], start: int) -> tuple[list[int], list[float], list[float]]:
        rows = [self.row(position) for position in range(len(ids) - start)]
        gaps = [float(row.max() - row[token]) for row, token in zip(rows, ids[start:], strict=True)]
        return [int(row.argmax()) for row in rows], gaps, [float(row.max()) for row in rows]


def judged(ours: Sequence[int], dtype: str, theirs: Table, exact: Table | None = None, **ask: Any) -> Any:
    asked = Ask(**{"prompt": (7, 7), "max_new_tokens": 6, "wave": 0, "arrive": 0, "speculative": True,
                   "temperature": 0.0, "stop": (), "abort_after": None, **ask})  # fmt: skip
    request = Request("r", [7, 7], SamplingParams(max_new_tokens=6), speculative=True, output_ids=list(ours))
    request.finish_reason = "length" if asked.abort_after is None else "abort"
    return judge(asked, request, dtype, theirs, exact or theirs)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", TIE_MARGIN)
def test_the_same_text_is_the_same(dtype: str) -> None:
    found = judged(WANTED, dtype, Table(WANTED))
    assert (found.same, found.ties, found.wrong) == (True, (), ())


def test_a_text_is_cut_at_its_first_stop_token_or_where_it_was_aborted() -> None:
    assert judged([3, 1], "float32", Table(WANTED), stop=(0, 1)).same
    assert judged([3, 1, 4], "float32", Table(WANTED), abort_after=2).same
    short = judged([3, 1, 4], "float32", Table(WANTED))
    assert short.wrong == ("it ends after 3 tokens, transformers' after 6",)
    assert not judged([3, 1, 4], "bfloat16", Table(WANTED), stop=(0, 1)).same


def test_half_precision_may_take_the_second_of_two_near_equals() -> None:
    """What follows is judged given what was taken, so the parting excuses nothing behind it."""
    exact = Table([3, 1, 6, 1, 5, 2], {(2, 4): 9.9})
    ours, theirs = [3, 1, 4, 1, 5, 2], Table([3, 1, 6, 1, 5, 2])
    found = judged(ours, "bfloat16", theirs, exact)
    assert (found.same, found.wrong) == (False, ())
    (tie,) = found.ties
    assert (tie.position, tie.token, tie.preferred) == (2, 4, 6)
    assert tie.margin == pytest.approx(0.1, abs=1e-4)
    assert tie.allowed == pytest.approx(10 * TIE_MARGIN["bfloat16"])
    assert judged(ours, "float32", theirs, exact).wrong == (
        "output 2 is 4 for 6, 0.1 logits apart, 0.001 allowed",
    )  # fmt: skip
    later = judged([3, 1, 4, 1, 7, 2], "bfloat16", theirs, exact)
    assert len(later.ties) == 1
    assert later.wrong == ("output 4 is 7 for 5, 10 logits apart, 0.25 allowed",)


def test_transformers_may_be_the_one_that_takes_the_second() -> None:
    exact = Table(WANTED, {(2, 6): 9.8})
    found = judged(WANTED, "bfloat16", Table([3, 1, 6, 1, 5, 2]), exact)
    (tie,) = found.ties
    assert (tie.position, tie.token, tie.preferred, found.wrong) == (2, 4, 6, ())


def test_a_token_that_is_far_off_is_wrong_in_every_dtype() -> None:
    for dtype in TIE_MARGIN:
        found = judged([3, 1, 7, 1, 5, 2], dtype, Table(WANTED))
        assert found.ties == ()
        assert [line.partition(",")[0] for line in found.wrong] == ["output 2 is 7 for 4"]


def test_the_model_of_transformers_keeps_texts_and_judgements(tmp_path: Any) -> None:
    model = make_target(tmp_path / "target", vocab=32)
    reference, prompt = HuggingFace(model, length=6), (5, 9, 2)
    text = reference.continuation(prompt)
    assert len(text) == 6
    assert reference.expected(prompt, 4, ()) == list(text[:4])
    assert reference.expected(prompt, 6, (text[0],)) == [text[0]]
    with pytest.raises(ValueError, match="asks for 7 tokens, 6 are generated"):
        reference.expected(prompt, 7, ())
    worst = int(reference.logits(prompt).argmin())
    for ids in (text[:2], text, (worst, *text[1:3]), (worst,)):  # alone, as part of what is known, and another text
        choices, gaps, sizes = reference.judge([*prompt, *ids], len(prompt))
        alone = HuggingFace(model, length=6).judge([*prompt, *ids], len(prompt))
        assert choices == alone[0]
        assert choices[0] == text[0]
        assert gaps == pytest.approx(alone[1], abs=1e-4)
        assert sizes == pytest.approx(alone[2], rel=1e-4)
        assert (gaps[0] == 0) == (ids[0] == text[0])
