"""Servers that are not well, that count what is not there, or that tell of failures."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.base.abilities import INSIDE
from specdebug.events import AfterStep, AllServed, Prefilled, Stepped
from specdebug.run.oracles.base import Bench, OracleSettings
from specdebug.run.oracles.registry import ORACLES
from specdebug.run.oracles.server import ASK_EVERY, ServerAlive, ServerCounts, ServerFindings, wrong_counts
from specdebug.scenario.grammar import OracleSpec
from specdebug.targets.base import Asked
from specdebug.targets.requests import SessionFailed
from specdebug.verdict.outcome import Violation
from tests.run.fakes import FakeRequest

GOOD: dict[str, Any] = {
    "prompt_tokens": 4,
    "completion_tokens": 6,
    "cached_tokens": 3,
    "spec_verify_ct": 3,
    "spec_accept_histogram": [1, 2],
    "spec_accept_length": 2.0,
}
RATE: dict[str, Any] = {"spec_accept_token_num": 2, "spec_draft_token_num": 9}


def a_server() -> Any:
    """What oracles are shown of a server."""
    it = SimpleNamespace(
        asked=[], wrong=None, meta=GOOD, taken_back=None, mean=2.0, told=[], own=True, owes=0, exact=None
    )

    def check_alive(*, generates: bool) -> SessionFailed | None:
        it.asked.append(generates)
        return it.wrong

    def findings() -> Sequence[tuple[str, str]]:
        told, it.told = it.told, []
        return told

    it.check_alive, it.findings = check_alive, findings
    it.owed, it.mean_accepted = lambda rid: it.owes, lambda: it.exact
    it.counted, it.revised = lambda rid: it.meta, lambda rid: it.taken_back
    it.totals = lambda: {"avg_spec_accept_length": it.mean}
    return it


def request() -> FakeRequest:
    sampling = SimpleNamespace(temperature=0)
    return FakeRequest(
        "a.0", [1] * 4, sampling, output_ids=[2] * 6, accept_lengths=[2, 2, 1], cached_tokens=3, finish_reason="length"
    )


class Watching:
    """A server, an oracle, and what that reports."""

    def __init__(self, kind: type[Any]) -> None:
        self.found: list[Violation] = []
        self.server = a_server()
        settings = OracleSettings(OracleSpec(), Asked("tiny", server=True))
        self.session: Any = SimpleNamespace(server=self.server, request=lambda rid: request(), has_work=True)
        self.oracle = kind(Bench(settings, self.session, None, self.found.append, print, str))

    def step(self, *finished: str) -> None:
        self.oracle.on(Stepped(1, "served", finished, finished=finished))

    @property
    def signatures(self) -> list[str]:
        return [each.signature for each in self.found]


def test_a_server_is_asked_when_it_is_idle_and_now_and_then_when_it_never_is() -> None:
    watching = Watching(ServerAlive)
    for number in range(ASK_EVERY):
        watching.step(f"a.{number}")
    assert watching.server.asked == [False]
    watching.session.has_work = False
    watching.step("b.0")
    watching.oracle.on(AllServed(()))
    assert watching.server.asked == [False, False, True]
    assert watching.found == []


def test_a_server_that_is_not_well_is_told_once() -> None:
    watching = Watching(ServerAlive)
    watching.server.wrong = SessionFailed("/health answers 503", "server.health")
    watching.session.has_work = False
    watching.step("a.0")
    watching.step("a.1")
    assert watching.signatures == ["error@server.health"]
    assert watching.found[0].detail == "the server is not well: /health answers 503"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, []),
        ({"spec_verify_ct": 0}, []),
        ({"spec_accept_histogram": None}, []),
        ({"prompt_tokens": 5}, ["prompt_tokens is 5, there are 4"]),
        ({"completion_tokens": 5}, ["completion_tokens is 5, there are 6"]),
        ({"cached_tokens": 4}, ["cached_tokens is 4 of a prompt of 4"]),
        ({"spec_verify_ct": 4, "spec_accept_length": 1.5}, ["spec_verify_ct is 4, spec_accept_histogram counts 3"]),
        ({"spec_accept_length": 1.2}, ["spec_accept_length is 1.2 of 6 tokens by 3 verifies"]),
        ({"reasoning_tokens": 6}, []),
        ({"reasoning_tokens": 7}, ["reasoning_tokens is 7, there are 6"]),
        ({**RATE, "spec_accept_rate": 2 / 9}, []),
        ({**RATE, "spec_accept_rate": 5 / 12}, ["spec_accept_rate is 0.416667, 2 of 9 drafts were right"]),
        ({**RATE, "spec_accept_token_num": 3}, ["spec_accept_token_num is 3, the histogram counts 2"]),
        (
            {"spec_num_correct_drafts": 2, "spec_num_proposed_drafts": 9, "spec_accept_rate": 0.5},
            ["spec_accept_rate is 0.5, 2 of 9 drafts were right"],
        ),
    ],
)
def test_counts_that_contradict_each_other(change: dict[str, Any], told: list[str]) -> None:
    assert list(wrong_counts(request(), {**GOOD, **change})) == told


def test_a_histogram_that_accepts_what_is_not_there() -> None:
    held = request()
    held.accept_lengths = [3, 3, 2]
    meta = {**GOOD, "spec_accept_histogram": [0, 1, 2]}
    assert list(wrong_counts(held, meta)) == ["spec_accept_histogram accepts 8 tokens, of which 5 are there"]


def test_each_prefill_after_a_retraction_emits_a_token_that_no_verify_accepts() -> None:
    held = request()
    held.accept_lengths = [2, 2]
    meta = {**GOOD, "spec_verify_ct": 2, "spec_accept_histogram": [0, 2], "spec_accept_length": 2.0}
    assert list(wrong_counts(held, {**meta, "num_retractions": 1})) == []
    assert "spec_accept_histogram accepts 4 tokens, of which 5 are there" in list(wrong_counts(held, meta))


@pytest.mark.parametrize(("mean", "told"), [(1.5, 0), (None, 0), (3.0, 0), (0.2, 1), (9.0, 1)])
def test_the_mean_of_all_requests_lies_among_theirs(mean: float | None, told: int) -> None:
    watching = Watching(ServerCounts)
    watching.server.mean = mean
    watching.oracle.on(AllServed(("a.0",)))
    assert watching.signatures == ["ends@counts"] * told


@pytest.mark.parametrize(
    ("own", "owed", "cached", "told"),
    [(True, 3, 3, 0), (True, 3, 2, 1), (True, 3, 0, 1), (False, 3, 2, 0), (False, 3, 0, 1), (False, 0, 0, 0)],
)
def test_a_hit_that_must_occur_does(own: bool, owed: int, cached: int, told: int) -> None:
    watching = Watching(ServerCounts)
    watching.server.own, watching.server.owes = own, owed
    held = request()
    held.cached_tokens = cached
    watching.server.meta = {**GOOD, "cached_tokens": cached}
    watching.session.request = lambda rid: held
    watching.step("a.0")
    assert watching.signatures == ["ends@counts"] * told
    assert all(f"cached_tokens is {cached} of a prompt of which 3 are cached" in each.detail for each in watching.found)


def test_what_a_server_tells_of_is_a_violation_of_its_name() -> None:
    watching = Watching(ServerFindings)
    watching.server.told = [("nan@draft.x", "3 bad"), ("crash:SIGSEGV", "a worker died")]
    watching.oracle.on(AfterStep(5))
    watching.oracle.on(AllServed(()))
    assert watching.signatures == ["nan@draft.x", "crash:SIGSEGV"]
    assert (watching.found[0].step, watching.found[0].detail) == (5, "the server says: 3 bad")


def test_what_an_engine_told_its_log_comes_before_what_is_seen_in_it() -> None:
    watching = Watching(ServerFindings)
    watching.server.told = [("nan@draft.x", "3 bad")]
    watching.oracle.on(Prefilled(None))
    assert watching.signatures == ["nan@draft.x"]
    inside = [number for number, kind in enumerate(ORACLES) if kind.needs & INSIDE]
    assert ORACLES.index(ServerFindings) < min(inside)
