"""Choices weighed by the shipped models: what the reference nearly chose is narrow, what it never would is not."""

from __future__ import annotations

from functools import cache

import pytest

from specdebug.bundle.partings import Parting
from specdebug.bundle.weigh import weigh
from specdebug.reference.drafting import TreeShape, standing
from specdebug.run.dense import DenseReference
from specdebug.run.oracles.lossless import TIE_MARGIN
from specdebug.targets.options import EngineShape
from tests.run.fakes import ListSink

MODEL, DRAFT = "tiny", "tiny-eagle"
TEXT = tuple((7919 * n * n + 31 * n) % 2000 + 3 for n in range(120))
"""Tokens in no order, after which the model is often in two minds."""


@cache
def reference() -> DenseReference:
    return DenseReference(MODEL, DRAFT)


def ranked(ids: tuple[int, ...]) -> list[int]:
    """What the model puts after ``ids``: the best token, the second best, one that is far from it."""
    import torch

    from specdebug.reference.target import target_logits

    one = reference()
    with torch.no_grad():
        order = target_logits(one.weights, one.config, one._states(ids).hidden[len(ids) - 1]).argsort(descending=True)
    return [int(order[0]), int(order[1]), int(order[len(order) // 2])]


def weighed(parting: Parting, dtype: str = "bfloat16", shape: tuple[int, int, int] | None = None) -> dict[str, float]:
    sink = ListSink()
    weigh({"shape": EngineShape(MODEL, DRAFT, "cpu", dtype, "triton", tree=shape), "partings": [parting]}, sink)
    (event,) = sink.events
    return event


@cache
def narrowest() -> tuple[int, ...]:
    """Where the model prefers a token least."""
    return min((TEXT[:n] for n in range(8, len(TEXT))), key=lambda ids: reference().next_token(ids)[1])


@pytest.mark.parametrize("swapped", [False, True])
def test_two_tokens_are_as_near_as_the_worse_is_to_the_best(swapped: bool) -> None:
    ids = narrowest()
    best, second, far = ranked(ids)
    pair = (second, best) if swapped else (best, second)
    found = weighed(Parting(1, "token", "a.0", 0, *pair, ids))
    token, lead, size = reference().next_token(ids)
    assert (found["preferred"], found["number"]) == (token, 0) == (best, 0)
    assert found["gap"] == pytest.approx(lead, abs=1e-3)
    assert found["allowed"] == pytest.approx(TIE_MARGIN["bfloat16"] * size)
    assert found["gap"] < found["allowed"]
    wide = weighed(Parting(1, "token", "a.0", 0, far, pair[1], ids))
    assert wide["gap"] > wide["allowed"]


def test_two_tokens_neither_of_which_is_near_the_best_are_wide_however_near_to_each_other() -> None:
    far = ranked(narrowest())[2]
    found = weighed(Parting(1, "token", "a.0", 0, far, far, narrowest()))
    assert found["gap"] > found["allowed"]


def test_what_is_narrow_depends_on_the_dtype() -> None:
    best, second, _ = ranked(narrowest())
    allowed = [
        weighed(Parting(1, "token", "a.0", 0, best, second, narrowest()), dtype)["allowed"] for dtype in TIE_MARGIN
    ]
    assert sorted(allowed) == allowed
    assert allowed[0] < allowed[1] < allowed[2]


def test_a_draft_is_as_narrow_as_its_place_at_the_edge_of_the_tree() -> None:
    ids, shape = narrowest(), (2, 3, 4)
    read = reference().drafted(ids)
    stand = {token: standing(read, len(ids) - 1, [token], TreeShape(*shape)) for token in range(3, 30)}
    token = min(stand, key=lambda each: stand[each].slack)  # the last that would be drafted
    found = weighed(Parting(1, "draft", "a.0", 0, 1, 2, ids, (token,), 1), shape=shape)
    assert found["gap"] == pytest.approx(-stand[token].slack, rel=1e-3)
    assert found["gap"] > found["allowed"]
    assert found["preferred"] == token


def test_more_drafts_than_a_tree_is_deep_are_not_excused() -> None:
    found = weighed(Parting(1, "draft", "a.0", 0, 10**9, 10**9 + 1, narrowest(), (5,), 10**9), shape=(1, 3, 4))
    assert float(found["gap"]) == float("inf")


def test_what_was_accepted_beyond_the_end_of_an_output_may_be_narrow_by_its_tokens() -> None:
    """The model decides between two tokens that nobody was given: one is a draft, the other is not."""
    before, last = narrowest()[:-1], narrowest()[-1]
    token, lead, size = reference().next_token(narrowest())
    found = weighed(Parting(1, "draft", "a.0", 0, 2, 3, before, (last,), 2), shape=(1, 3, 4))
    assert found["preferred"] == token
    assert found["gap"] / found["allowed"] <= lead / (TIE_MARGIN["bfloat16"] * size) + 1e-3
