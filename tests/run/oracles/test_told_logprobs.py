"""Log probabilities that a request is told and that are not the reference's are named; so are missing ones."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from specdebug.base.features import Features
from specdebug.events import AllServed
from specdebug.run.oracles.base import Bench
from specdebug.run.oracles.lossless import ToldLogprobs
from specdebug.verdict.outcome import Violation
from tests.run.fakes import FakeRequest, oracle_settings

LOGITS = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]])
RIGHT = LOGITS.log_softmax(-1).tolist()


def judged(
    told: list[float], tops: list[dict[int, float]] | None = None, temperature: float = 0.0, **features: Any
) -> list[Violation]:
    """Return the violations of a request whose output is the tokens 1 and 0."""
    asked = Features(**{"logprobs": 1, **features})
    sampling = SimpleNamespace(temperature=temperature, features=asked)
    held = FakeRequest("a.0", [1, 2], sampling)
    held.output_ids += [1, 0]
    session = SimpleNamespace(
        shows={"logprobs"},
        request=lambda rid: held,
        logprobs=lambda rid: told,
        top_logprobs=lambda rid: tops or [{} for _ in told],
    )
    reference = SimpleNamespace(logits=lambda ids, start: LOGITS[start - 2 :])
    found: list[Violation] = []
    bench = Bench(oracle_settings(), cast(Any, session), cast(Any, reference), found.append, print, str)
    ToldLogprobs(bench).on(AllServed(("a.0",)))
    return found


def test_the_references_own_are_right() -> None:
    assert judged([RIGHT[0][1], RIGHT[1][0]], [{1: RIGHT[0][1]}, {2: RIGHT[1][2]}]) == []


@pytest.mark.parametrize(
    ("told", "tops", "position"),
    [
        ([RIGHT[0][1], RIGHT[0][1]], None, 1),
        ([RIGHT[0][1]], None, 1),
        ([RIGHT[0][1], RIGHT[1][0]], [{1: RIGHT[0][1]}, {2: RIGHT[1][0]}], 1),
        ([0.0, RIGHT[1][0]], None, 0),
        ([float("nan"), RIGHT[1][0]], None, 0),
    ],
)
def test_others_are_named(told: list[float], tops: list[dict[int, float]] | None, position: int) -> None:
    (found,) = judged(told, tops)
    assert (found.signature, found.data["position"]) == ("mismatch@request.logprobs", position)


@pytest.mark.parametrize("asked", [{"temperature": 0.5}, {"frequency_penalty": 1.0}, {"logprobs": None}])
def test_what_no_reference_can_tell_is_left_out(asked: dict[str, Any]) -> None:
    assert judged([0.0, 0.0], **asked) == []
