"""Requests that sample have random streams of their own, and the law says so when they do not."""

from __future__ import annotations

import pytest

from specdebug.engine import Engine, SamplingParams
from specdebug.engine.textbook import sampler
from tests.engine.parts import make_config
from tests.engine.planting import plant

SAMPLED = SamplingParams(max_new_tokens=4, temperature=0.9)


@pytest.fixture
def engine() -> Engine:
    engine = Engine(make_config())
    for rid in ("a", "b"):
        engine.add_request(rid, [50, 51, 52], SAMPLED)
    engine.add_request("greedy", [50, 51, 52], SamplingParams(max_new_tokens=4))
    return engine


def test_streams_of_their_own_break_no_law(engine: Engine) -> None:
    assert engine.check_pools() == []
    while engine.has_work:
        engine.step()
        assert engine.check_pools() == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if request.generator is None", "if request.generator is not None"),
        ("request.generator = torch.Generator().manual_seed(seed)", "pass"),
    ],
)
def test_draws_from_the_global_generator_are_told(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, old: str, new: str
) -> None:
    plant(monkeypatch, sampler, "request_generator", old, new)
    engine.step()
    assert engine.check_pools() == [
        f"streams: {rid} has sampled, and has no generator of its own" for rid in ("a", "b")
    ]


def test_two_requests_on_one_generator_are_told(engine: Engine) -> None:
    engine.step()
    engine.requests["b"].generator = engine.requests["a"].generator
    assert engine.check_pools() == ["streams: b and a draw from one generator"]
