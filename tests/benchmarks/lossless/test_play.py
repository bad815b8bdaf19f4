"""Serving a configuration: all are served to their ends, and what no sound engine leaves is told."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.lossless import play as module
from benchmarks.lossless.draw import Ask, Configuration
from benchmarks.lossless.play import ending, play
from specdebug.engine import Engine, Request, SamplingParams
from tests.engine.conftest import Lab, lab, recording

__all__ = ["lab", "recording"]


def ask(*prompt: int, **changed: Any) -> Ask:
    plain = {"max_new_tokens": 6, "wave": 0, "arrive": 0, "speculative": True, "temperature": 0.0, "stop": ()}
    return Ask(prompt, **{**plain, "abort_after": None, **changed})


@pytest.fixture
def asked(lab: Lab) -> Configuration:
    """Two that share a batch, one that hits what the first left, one that is aborted, one that is sampled."""
    long = tuple(range(1, 13))
    asks = (ask(*long), ask(2, 3, arrive=1), ask(*long, wave=1), ask(4, max_new_tokens=20, abort_after=3))
    engine = {
        "model": str(lab.target),
        "context_length": 64,
        "max_running_requests": 4,
        "chunked_prefill_size": 8,
        "speculative": {"algorithm": "EAGLE", "draft_model": str(lab.eagle), "num_steps": 3},
        "cuda_graph": {"max_bs": 4, "capture_bs": [4]},
        "memory": {"num_slots": 512, "fill": "nan", "guards": True},
    }
    return Configuration(engine, (*asks, ask(5, temperature=0.8)), None)


@pytest.mark.usefixtures("recording")
def test_all_are_served_and_what_was_met_is_counted(asked: Configuration, lab: Lab) -> None:
    played = play(asked)
    assert played.problems == []
    assert [request.prompt_ids for request in played.requests] == [list(each.prompt) for each in asked.asks]
    for each, request in zip(asked.asks[:3], played.requests, strict=False):
        lab.oracle.check(each.prompt, request.output_ids, 6)
    met = played.met
    assert (met["hit"], met["aborted"], met["sampled"], met["retracted"]) == (1, 1, 1, 0)
    assert min(met["chunked"], met["graph"], met["padded"]) > 0
    assert max(played.accept_lengths) > 1


@pytest.mark.usefixtures("recording")
def test_what_is_out_of_order_is_told(asked: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "check_pools", lambda self: ["slot 3 is lost"])
    assert set(play(asked).problems) == {"slot 3 is lost"}
    monkeypatch.undo()
    monkeypatch.setattr(Engine, "flush_cache", lambda self: None)
    (told,) = play(asked).problems
    assert told.endswith("of 512 slots are free when all is over")


@pytest.mark.usefixtures("recording")
def test_an_engine_that_does_not_end_is_told(asked: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STEPS", 3)
    played = play(asked)
    assert played.problems == ["the engine does not come to an end in 3 steps"]
    assert played.requests == []


@pytest.mark.parametrize(
    ("output", "reason", "accepted", "told"),
    [
        ([1, 2, 3, 4], "length", [2, 2], []),
        ([1, 9], "stop", [], []),
        ([1], "abort", [], []),
        ([1, 2], "length", [], ["r ends after 2 tokens of 4, at no stop token"]),
        ([1, 9, 3, 4], "length", [], ["r goes on behind its stop token, output 1"]),
        ([1, 2, 3, 4, 5], "length", [], ["r has 5 tokens, and asked for 4"]),
        ([1, 2, 3, 4], "length", [2, 0], ["r has a verify that accepts nothing: [2, 0]"]),
    ],
)
def test_how_a_request_ends(output: list[int], reason: str, accepted: list[int], told: list[str]) -> None:
    sampling = SamplingParams(max_new_tokens=4, stop_token_ids=(9,))
    request = Request("r", [0], sampling, speculative=True, output_ids=output, accept_lengths=accepted)
    request.finish_reason = reason
    assert list(ending(request)) == told
