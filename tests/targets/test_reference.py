"""The dense model as a target: what it serves, what it refuses, and that its texts are the reference's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError, SpecDebugError
from specdebug.reference.target import greedy_generate
from specdebug.reference.weights import load_weights
from specdebug.scenario.text import decoder, load_tokenizer
from specdebug.scenario.workload import RequestSampling
from specdebug.targets.base import Busy, Opening
from specdebug.targets.reference import TARGET, ReferenceSession
from specdebug.targets.requests import CannotBeServed

PROMPT = (1, 20, 300, 4)


@pytest.fixture(scope="module", autouse=True)
def _weights() -> None:
    TARGET.warm({"model": "tiny"})


def session(max_running: int = 8) -> ReferenceSession:
    return ReferenceSession("tiny", max_running, seed=0)


def serve(target: ReferenceSession) -> list[Any]:
    reports = []
    while target.has_work:
        reports.append(target.advance())
    return reports


def test_its_text_is_what_plain_decoding_gives() -> None:
    one = session()
    one.add("a", PROMPT, RequestSampling(6), speculative=True)
    reports = serve(one)
    weights, config = load_weights(checkpoint_path("tiny"))
    expected = greedy_generate(weights, config, torch.tensor([PROMPT]), 6)[0, len(PROMPT) :].tolist()
    assert list(one.request("a").output_ids) == expected
    assert [report.kind for report in reports] == ["prefill"] + ["decode"] * 5
    assert (reports[-1].finished, one.request("a").finish_reason) == (("a",), "length")


def test_requests_beyond_the_limit_wait_and_a_stop_token_ends_one() -> None:
    one = session(max_running=1)
    one.add("a", PROMPT, RequestSampling(6), speculative=False)
    serve(one)
    text = list(one.request("a").output_ids)
    stop = text[2]
    two = session(max_running=1)
    two.add("a", PROMPT, RequestSampling(6, stop_token_ids=(stop,)), speculative=False)
    two.add("b", PROMPT, RequestSampling(2), speculative=False)
    reports = serve(two)
    assert [report.rids for report in reports] == [("a",)] * (text.index(stop) + 1) + [("b",)] * 2
    assert two.request("a").finish_reason == "stop"
    assert two.advance().kind == "idle"


def test_a_stop_string_ends_a_request_with_the_token_that_completes_it() -> None:
    one = session()
    one.add("a", PROMPT, RequestSampling(6), speculative=False)
    serve(one)
    tokens = list(one.request("a").output_ids)
    stop = decoder(load_tokenizer("tiny"))(tokens[:4])
    two = session()
    two.add("a", PROMPT, RequestSampling(6, stop=("not there", stop)), speculative=False)
    two.add("b", PROMPT, RequestSampling(6, stop_token_ids=(tokens[1],)), speculative=False)
    serve(two)
    ended = [two.request(rid) for rid in "ab"]
    assert [list(each.output_ids) for each in ended] == [tokens[:4], tokens[:2]]
    assert [(each.finish_reason, each.matched_stop) for each in ended] == [("stop", stop), ("stop", tokens[1])]


def test_a_stop_string_needs_a_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(model: str) -> Any:
        raise CheckpointError("tokenizer.json is missing")

    monkeypatch.setattr("specdebug.base.assets.tokenizer_path", missing)
    with pytest.raises(CannotBeServed, match=r"'a' has stop strings, and they need a tokenizer: .* is missing"):
        session().add("a", PROMPT, RequestSampling(6, stop=("x",)), speculative=False)


def test_an_aborted_request_keeps_what_it_had() -> None:
    one = session()
    one.add("a", PROMPT, RequestSampling(50), speculative=False)
    one.advance()
    one.abort("a")
    one.abort("a")
    assert (one.has_work, one.request("a").finish_reason, len(one.request("a").output_ids)) == (False, "abort", 1)


@pytest.mark.parametrize("prompt", [(), (-1,), (10**9,)])
def test_what_can_never_be_served_is_refused_by_name(prompt: tuple[int, ...]) -> None:
    with pytest.raises(CannotBeServed, match="'a'") as caught:
        session().add("a", prompt, RequestSampling(1), speculative=False)
    assert caught.value.exit_code == 2


def test_sampling_is_seeded_and_stays_within_what_was_left() -> None:
    def text(seed: int, **sampling: Any) -> list[int]:
        one = session()
        one.add("a", PROMPT, RequestSampling(12, temperature=1.5, seed=seed, **sampling), speculative=False)
        serve(one)
        return list(one.request("a").output_ids)

    assert text(1) == text(1)
    assert text(1) != text(2)
    assert text(1, top_k=1) == text(2, top_k=1)  # the greatest alone is left


def test_options_that_mean_nothing_here_are_listed_and_wrong_ones_refused() -> None:
    asked = TARGET.asked({"model": "tiny", "page_size": 4, "speculative": {}, "memory": {"guards": True}})
    assert asked.unused == ("page_size", "speculative", "memory")
    assert (asked.drafts, asked.guards, asked.device) == (True, True, "cpu")
    with pytest.raises(SpecDebugError, match="max_running_requests"):
        TARGET.asked({"max_running_requests": 0})


def test_opening_says_what_it_runs_on() -> None:
    events: list[tuple[str, dict[str, Any]]] = []

    def say(event: str, **fields: Any) -> None:
        events.append((event, fields))

    opening = Opening("x", say, Busy(say))
    opened = TARGET.open({"model": "tiny"}, 0, opening)
    (event, facts) = events[0]
    assert (event, facts["executor"], facts["dtype"]) == ("stack", "torch reference", "float32")
    assert opened.vocab_size > 1000
    with pytest.raises(NotImplementedError, match="cannot show"):
        opened.draft_kv(None, 0, 1)
