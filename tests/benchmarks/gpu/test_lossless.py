"""The comparison with Hugging Face, at a size for a CPU: equal in float32, and able to say what is not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import lossless
from benchmarks.gpu.lossless import Ask, HuggingFace, Row, greedy_requests, judge
from specdebug.scenario.library import Library


@pytest.fixture(scope="module")
def exact() -> HuggingFace:
    pytest.importorskip("transformers")
    return HuggingFace("float32", "cpu")


def row(dtype: str) -> Row:
    return Row("triton", "us", dtype, 1, 1, 6, 1.0, 0.0, [], [], [])


def test_requests_are_greedy_have_prompts_of_their_own_and_come_once() -> None:
    asks = greedy_requests(Library(), lossless.SCENARIOS, 10)
    assert len(asks) > 20
    assert len({ask.prompt for ask in asks}) == len(asks)
    assert {ask.max_new_tokens for ask in asks} <= set(range(1, 11))
    names = [ask.name for ask in asks]
    assert "multiturn_cache_hit/chat.0.0" in names
    assert "multiturn_cache_hit/chat.0.1" not in names  # what it continues is not known beforehand


def test_half_precision_may_part_at_near_ties_only(exact: HuggingFace) -> None:
    ask = Ask("a", tuple(range(100, 130)), 6)
    theirs = exact.generate(ask)
    logits = exact.logits(ask.prompt)
    same, wrong = row("bfloat16"), row("bfloat16")
    judge([ask], [theirs], [theirs], same, exact)
    assert (same.parted, same.wrong) == ([], [])
    worst = int(logits.argmin())
    judge([ask], [[worst, *theirs[1:]]], [theirs], wrong, exact)
    ((name, tie),) = wrong.parted
    assert (name, tie.position, tie.token, tie.preferred) == ("a", 0, worst, theirs[0])
    assert tie.margin == pytest.approx(float(logits.max() - logits.min()))
    assert tie.margin > tie.allowed
    assert any("output 0" in line for line in wrong.wrong)


def test_float32_may_not_part_at_all(exact: HuggingFace) -> None:
    ask = Ask("a", tuple(range(100, 130)), 6)
    theirs = exact.generate(ask)
    for ours in ([*theirs[:-1], theirs[-1] + 1], theirs[:-1]):
        strict = row("float32")
        judge([ask], [ours], [theirs], strict, exact)
        assert len(strict.wrong) == 1
        assert "differs from output 5 on" in strict.wrong[0]


def test_a_text_that_ends_early_is_wrong_in_any_dtype(exact: HuggingFace) -> None:
    ask = Ask("a", tuple(range(100, 130)), 6)
    theirs = exact.generate(ask)
    short = row("bfloat16")
    judge([ask], [theirs[:-1]], [theirs], short, exact)
    assert len(short.wrong) == 1


@pytest.mark.slow
def test_the_engine_gives_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--device", "cpu", "--plan", "fa3", "--topk", "4", "--scenario", "graph_padding", "--most-tokens", "8"]
    monkeypatch.setattr(sys, "argv", ["lossless.py", str(tmp_path), *options])
    assert lossless.main() == 0, capsys.readouterr().out
    rows = json.loads((tmp_path / "lossless.json").read_text())
    assert [(row["dtype"], row["requests"], row["tokens"]) for row in rows] == [
        ("float32", 3, 24),
        ("bfloat16", 3, 24),
    ]
    assert not torch.backends.cuda.matmul.allow_tf32
