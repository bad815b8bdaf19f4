"""Requests that end where they should not, say why wrongly, or stream what they do not keep, are named."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specdebug.base.features import Features
from specdebug.engine.textbook.request import Request
from specdebug.events import AllServed, Stepped
from specdebug.run.oracles.base import Bench
from specdebug.run.oracles.ends import Ends
from specdebug.scenario.text import decoder, load_tokenizer
from specdebug.verdict.outcome import Violation
from tests.run.fakes import FakeRequest, oracle_settings
from tests.run.oracles.serving import ALONE, serve

STOP = 9
STRING = "kl"  # of a text in which token n is the letter n + 96, and 30 four letters


def letters(ids: Sequence[int]) -> str:
    return "".join("xkly" if n == 30 else chr(n + 96) for n in ids)


def matched(output: Sequence[int]) -> int | str | None:
    return STOP if STOP in output else STRING if STRING in letters(output) else None


class Told:
    """One request of eight tokens at most, and the oracle that is told of its steps."""

    def __init__(self) -> None:
        self.found: list[Violation] = []
        sampling = SimpleNamespace(temperature=0.0, max_new_tokens=8, stop_token_ids=(STOP,), stop=(STRING,))
        self.held = FakeRequest("a.0", [1, 2], sampling)
        self.oracle = Ends(Bench(oracle_settings(), cast(Any, self), None, self.found.append, print, letters))
        self.server: Any = None
        self.own = True

    def request(self, rid: str) -> FakeRequest:
        return self.held

    def step(
        self,
        emitted: Sequence[int],
        *,
        reason: str | None = None,
        kept: Sequence[int] | None = None,
        accepted: int | None = None,
        finished: bool | None = None,
        **held: Any,
    ) -> None:
        self.held.output_ids += emitted if kept is None else kept
        self.held.finish_reason = reason
        self.held.matched_stop = held.get("matched", matched(self.held.output_ids))
        done = ("a.0",) if (reason is not None if finished is None else finished) else ()
        lengths = {} if accepted is None else {"a.0": accepted}
        given = {"a.0": list(emitted)} if emitted else {}
        self.oracle.on(Stepped(1, "decode", ("a.0",), given, lengths, finished=done))

    def end(self) -> list[str]:
        self.oracle.on(AllServed(("a.0",)))
        return [violation.signature for violation in self.found]


def test_requests_that_end_as_they_should_are_silent() -> None:
    for last, reason in (
        ([5, 6, 7, 8], "length"),
        ([5, STOP], "stop"),
        ([5, 6, 7, STOP], "stop"),
        ([11, 12], "stop"),
        ([5, 30], "stop"),
        ([5, 6, 11, 12], "stop"),
        ([11, 11, 11, 11], "length"),
    ):
        told = Told()
        told.step([3])
        told.step([4, 4, 4], accepted=3)
        told.step(last, accepted=5, reason=reason)
        assert told.end() == []


def test_of_another_s_server_a_stop_at_the_full_length_may_be_called_a_length() -> None:
    for own, said in ((True, ["ends@reason"]), (False, [])):
        told = Told()
        told.server = SimpleNamespace(own=own)
        told.step([3, 4, 4, 4, 5, 6, 7, STOP], reason="length", matched=None)
        assert told.end() == said
    told = Told()
    told.server = SimpleNamespace(own=False)
    told.step([3, STOP], reason="length", matched=None)
    assert told.end() == ["ends@reason"]


def test_an_aborted_request_ends_anywhere_and_is_given_nothing_more() -> None:
    told = Told()
    told.step([3])
    told.held.finish_reason = "abort"
    assert told.end() == []
    told.step([4], reason="abort", finished=False)
    assert told.end() == ["ends@stream"]
    assert "ended (abort) and then was given 1 more tokens, the first 4" in told.found[0].detail


WRONG: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "a stop token in the middle": ("stop.token", [{"emitted": [3, STOP, 5, 6]}]),
    "a stop token that ends nothing": ("stop.token", [{"emitted": [3, STOP]}]),
    "stopped by none": ("stop.string", [{"emitted": [3, 4], "reason": "stop"}]),
    "a stop string in the middle": ("stop.string", [{"emitted": [3, 11, 12, 5]}]),
    "a stop string over two steps that ends nothing": ("stop.string", [{"emitted": [11]}, {"emitted": [12]}]),
    "a stop string within a token that ends nothing": ("stop.string", [{"emitted": [30]}]),
    "stopped before the string is complete": (
        "stop.string",
        [{"emitted": [3, 11], "reason": "stop", "matched": STRING}],
    ),
    "another stop named than ended it": ("reason", [{"emitted": [11, 12], "reason": "stop", "matched": STOP}]),
    "no stop named": ("reason", [{"emitted": [STOP], "reason": "stop", "matched": None}]),
    "a stop named that did not end it": ("reason", [{"emitted": [3] * 8, "reason": "length", "matched": STRING}]),
    "too long": ("length", [{"emitted": [3] * 9, "reason": "length"}]),
    "as long as may be, and goes on": ("length", [{"emitted": [3] * 8}]),
    "too short": ("length", [{"emitted": [3] * 7, "reason": "length"}]),
    "a stop called a length": ("reason", [{"emitted": [3, STOP], "reason": "length"}]),
    "a length called a stop": ("reason", [{"emitted": [3] * 8, "reason": "stop"}]),
    "an end without a reason": ("reason", [{"emitted": [3], "finished": True}]),
    "a reason without an end": ("reason", [{"emitted": [3], "reason": "length", "finished": False}]),
    "never finished": ("reason", [{"emitted": [3, 4]}]),
    "kept and not streamed": ("stream", [{"emitted": [3], "kept": [3, 4]}]),
    "streamed and not kept": ("stream", [{"emitted": [3, 4], "kept": [3]}]),
    "streamed otherwise": ("stream", [{"emitted": [3], "kept": [4]}]),
    "more accepted than emitted": ("stream", [{"emitted": [3]}, {"emitted": [4, 5], "accepted": 3}]),
    "fewer accepted than emitted, at the end": ("stream", [{"emitted": [4, STOP], "accepted": 1, "reason": "stop"}]),
    "given more after its end": (
        "stream",
        [{"emitted": [STOP], "reason": "stop"}, {"emitted": [5], "reason": "stop", "finished": False}],
    ),
    "finished twice": ("stream", [{"emitted": [STOP], "reason": "stop"}, {"emitted": [], "reason": "stop"}]),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_end_is_named_once_with_request_position_and_token(name: str) -> None:
    site, steps = WRONG[name]
    told = Told()
    for step in steps:
        told.step(**step)
    assert told.end() == [f"ends@{site}"]
    assert told.found[0].data["rid"] == "a.0"
    assert "a.0" in told.found[0].detail


def test_the_shipped_scenario_ends_requests_inside_what_a_verify_accepted() -> None:
    found, _, session = serve("request_ends", **ALONE)
    assert found == []
    cut = {
        rid: sum(request.accept_lengths) + 1 - len(request.output_ids)
        for rid, request in session.inside.requests.items()
        if request.accept_lengths
    }
    reasons = {rid: request.finish_reason for rid, request in session.inside.requests.items()}
    for rid in ("stop.0", "stop-early.0", "length.0", "length-short.0", "both.0"):
        assert cut[rid] > 0, f"{rid} ends with its last verify"
        assert reasons[rid] == ("length" if rid.startswith("length") else "stop")
    assert (
        len(session.inside.requests["both.0"].output_ids) == session.inside.requests["both.0"].sampling.max_new_tokens
    )
    assert (reasons["first.0"], reasons["one.0"], reasons["plain.0"]) == ("stop", "length", "stop")
    requests = session.inside.requests
    stops = {rid: (len(each.output_ids), each.matched_stop) for rid, each in requests.items() if each.sampling.stop}
    assert stops == {
        "string.0": (8, "e(M"),
        "string-across.0": (18, "a message"),
        "string-late.0": (17, None),
        "string-after-prompt.0": (7, ".value"),
        "string-first.0": (1, "\n"),
        "string-plain.0": (7, ".value"),
    }
    assert all(cut[rid] > 0 for rid in ("string.0", "string-across.0", "string-after-prompt.0"))
    assert (requests["stop.0"].matched_stop, requests["length.0"].matched_stop) == (504, None)


def string_of(request: Request) -> str | None:
    """The stop string, if any, that the newest token of a request completes."""
    return None if request.stop_strings is None else request.stop_strings.completed(request.output_ids)


def stop_only_at_the_end(request: Request, tokens: Sequence[int]) -> list[int]:
    """The bug: only the last of a verify's tokens is held against the stop tokens."""
    kept = list(tokens[: request.sampling.max_new_tokens - len(request.output_ids)])
    request.output_ids += kept
    request.matched_stop = kept[-1] if kept[-1] in request.sampling.stop_token_ids else string_of(request)
    if request.matched_stop is not None:
        request.finish_reason = "stop"
    elif len(request.output_ids) == request.sampling.max_new_tokens:
        request.finish_reason = "length"
    return kept


def longer_than_asked(request: Request, tokens: Sequence[int]) -> list[int]:
    """The bug: all that a verify accepted is kept."""
    stops = [n for n, token in enumerate(tokens) if token in request.sampling.stop_token_ids]
    kept = list(tokens[: stops[0] + 1] if stops else tokens)
    request.output_ids += kept
    if stops:
        request.finish_reason, request.matched_stop = "stop", kept[-1]
    elif len(request.output_ids) >= request.sampling.max_new_tokens:
        request.finish_reason = "length"
    return kept


def streams_what_it_drops(request: Request, tokens: Sequence[int]) -> list[int]:
    RIGHT(request, tokens)
    return list(tokens)


def length_before_stop(request: Request, tokens: Sequence[int]) -> list[int]:
    kept = RIGHT(request, tokens)
    if len(request.output_ids) == request.sampling.max_new_tokens:
        request.finish_reason = "length"
    return kept


def drops_what_a_string_ends(request: Request, tokens: Sequence[int]) -> list[int]:
    """The bug: the token that completes a stop string is not kept."""
    kept = RIGHT(request, tokens)
    if isinstance(request.matched_stop, str):
        del request.output_ids[-1]
        return kept[:-1]
    return kept


def names_no_stop(request: Request, tokens: Sequence[int]) -> list[int]:
    kept = RIGHT(request, tokens)
    request.matched_stop = None
    return kept


RIGHT = Request.accept_tokens


@pytest.mark.parametrize(
    ("bug", "signature"),
    [
        (stop_only_at_the_end, "ends@stop.token"),
        (longer_than_asked, "ends@length"),
        (streams_what_it_drops, "ends@stream"),
        (length_before_stop, "ends@reason"),
        (drops_what_a_string_ends, "ends@stop.string"),
        (names_no_stop, "ends@reason"),
    ],
)
def test_an_engine_that_ends_requests_wrongly_is_caught(
    bug: Any, signature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Request, "accept_tokens", bug)
    found, _, _ = serve("request_ends", **ALONE)
    assert signature in [violation.signature for violation in found]
    assert {violation.kind for violation in found} == {"ends"}


DECODE = decoder(load_tokenizer("tiny"))


def test_a_stop_before_the_least_length_is_none_and_a_grammar_s_end_is_an_end() -> None:
    told = Told()
    told.held.sampling.features = Features(min_new_tokens=4)
    told.step([1, STOP, 1], matched=None)
    told.step([STOP], reason="stop")
    assert told.found == []
    over = Told()
    over.held.sampling.features = Features(regex="a+")
    over.step([1, 1], reason="stop")
    assert over.found == []


def test_a_stop_string_within_the_least_number_of_tokens_is_none() -> None:
    told = Told()
    told.held.sampling.features = Features(min_new_tokens=4)
    told.step([11, 12], matched=None)
    told.step([3, 11], accepted=2, matched=None)
    assert told.found == []
    told.step([12, 5], accepted=2)
    assert [violation.signature for violation in told.found] == ["ends@stop.string"]
