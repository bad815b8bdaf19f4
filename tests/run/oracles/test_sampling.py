"""Engines whose sampled tokens are not the target's are caught, by the token or by how often it is drawn."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.engine.kernels import accept as kernel
from specdebug.engine.textbook import sampler
from specdebug.engine.textbook.speculative import accept
from specdebug.events import Finishing
from specdebug.run.dense import DenseReference
from specdebug.run.oracles.base import Bench
from specdebug.run.oracles.sampling import SampledTokens
from specdebug.search.draws import NEEDED
from specdebug.targets.embedded import TARGET
from specdebug.verdict.outcome import Violation
from tests.run.fakes import FakeReference, FakeRequest, oracle_settings
from tests.run.oracles.serving import ALONE, serve

NO_SESSION: Any = None


class Uniform(FakeReference):
    """Of ten tokens all are as likely, of which top_k 4 leaves the first four a little more so."""

    def logits(self, ids: Sequence[int], start: int) -> Tensor:
        return torch.linspace(1.0, 0.9, 10).expand(len(ids) - start, 10)


def judged(outputs: Sequence[Sequence[int]], dtype: str = "float32", exact: bool = True) -> tuple[list[Any], list[str]]:
    found: list[Violation] = []
    settings = oracle_settings(dtype=dtype)
    object.__setattr__(settings.target, "exact", exact)
    oracle = SampledTokens(Bench(settings, NO_SESSION, Uniform(), found.append, print, str))
    for number, output in enumerate(outputs):
        sampling = SimpleNamespace(temperature=1.0, top_k=4, top_p=1.0)
        oracle.on(Finishing(FakeRequest(f"a.{number}", [1, 2], sampling, output_ids=list(output))))
    return found, list(oracle.notes())


def test_a_token_that_top_k_leaves_out_is_named() -> None:
    found, _ = judged([[0, 3, 7, 1]])
    assert [violation.signature for violation in found] == ["sampling@support"]
    assert found[0].detail == (
        "a.0 output 2: sampled 7 '[7]', which 7 tokens precede; top_k 4 and top_p 1 leave 4 at temperature 1"
    )


def test_what_half_precision_cannot_tell_apart_at_the_border_is_let_pass() -> None:
    assert judged([[0, 4, 1]], "bfloat16")[0] == []
    assert [violation.site for violation in judged([[0, 4, 1]])[0]] == ["support"]


def test_below_the_draws_it_needs_it_says_that_it_does_not_know() -> None:
    assert judged([[0, 1, 2, 3] * 25]) == ([], [f"sampling@distribution: unknown: 100 draws, needs {NEEDED}"])
    assert judged([[0, 1, 2, 3] * (NEEDED // 4 + 1)]) == ([], [])


def test_one_token_too_often_is_an_alarm_once_and_not_where_odds_are_other_by_right() -> None:
    found, notes = judged([[0] * 60] * 9)
    assert [violation.signature for violation in found] == ["sampling@distribution"]
    assert "draws, 8 expected, in [" in found[0].detail
    assert notes == []
    assert judged([[0] * 60] * 9, "bfloat16") == ([], [])
    assert judged([[0] * 60] * 9, exact=False) == ([], [])
    spec = {"threshold_acc": 0.5, "num_steps": 2}
    assert not TARGET.asked({"speculative": spec}).exact
    assert TARGET.asked({"speculative": {"num_steps": 2}}).exact


RIGHT_PROBS, RIGHT_WALK, RIGHT_DRAW = sampler.target_probs, accept.accept_sampling, kernel._draw


def without_scaling(probs: Tensor, top_p: float) -> Tensor:
    """The bug: what top-p leaves does not add up to 1."""
    ordered = probs.sort(dim=-1, descending=True).values
    before = ordered.cumsum(-1) - ordered
    least = ordered.masked_fill(before >= top_p, float("inf")).amin(-1, keepdim=True)
    return torch.where(probs >= least, probs, 0.0)


def no_temperature(logits: Tensor, params: Any) -> Tensor:
    return RIGHT_PROBS(logits * params.temperature, params)


def twice_the_mass(*args: Any, **options: Any) -> Any:
    return RIGHT_WALK(*args, **{**options, "threshold_acc": 0.5})


def the_coin_again(weights: Tensor, coin: float) -> int:
    """The bug: what is in the place of rejected drafts is drawn by the coin that rejected them, which is a high one."""
    rejected = bool((weights[:, None] == 0).any()) and float(weights.sum()) < 1 - 1e-6
    mass = 1 - float(weights.sum())
    return RIGHT_DRAW(weights, mass + (1 - mass) * coin if rejected else coin)


BUGS: dict[str, tuple[str, list[tuple[Any, str, Any]]]] = {
    "top-p skipped": ("sampling@support", [(sampler, "top_p_renorm", lambda probs, top_p: probs)]),
    "top-p not renormalised": ("sampling@distribution", [(sampler, "top_p_renorm", without_scaling)]),
    "rejected mass not removed": ("sampling@distribution", [(kernel, "_without", lambda probs, _: probs.double())]),
    "the rejected coin again": ("sampling@distribution", [(kernel, "_draw", the_coin_again)]),
    "accepted at twice the mass": ("sampling@distribution", [(accept, "accept_sampling", twice_the_mass)]),
    "temperature ignored": (
        "sampling@distribution",
        [(sampler, "target_probs", no_temperature), (accept, "target_probs", no_temperature)],
    ),
}


@pytest.mark.slow
def test_the_shipped_scenario_has_the_draws_that_are_needed() -> None:
    found, judge, _ = serve("sampled", reference=DenseReference("tiny", None), **{**ALONE, "sampling": True})
    assert (found, list(judge.notes())) == ([], [])
    assert judge.bench.looks["sampling"] == 14


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_the_shipped_scenario_shows_a_sampler_that_is_wrong(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signature, edits = BUGS[bug]
    for edit in edits:
        monkeypatch.setattr(*edit)
    found, _, _ = serve("sampled", reference=DenseReference("tiny", None), **{**ALONE, "sampling": True})
    assert signature in [violation.signature for violation in found]


@pytest.mark.slow
def test_half_precision_leaves_every_token_in_its_support() -> None:
    engine = {"dtype": "bfloat16"}
    found, _, _ = serve("sampled", engine=engine, reference=DenseReference("tiny", None), **{**ALONE, "sampling": True})
    assert found == []
