"""Every worker of the engine behind HTTP: answers as without drafts, streams, an abort, logprobs, metrics; its end."""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.apps.serve import engine_loop
from specdebug.apps.serve.engine_loop import FRONT_GONE, serve
from specdebug.apps.serve.process import Launch
from specdebug.apps.serve.requests import Wish
from specdebug.engine import progress
from specdebug.engine.workers.registry import LINEUP
from specdebug.targets.embedded import EmbeddedSession
from specdebug.workers.wire import PipeSink
from tests.apps.serve.serving import Serving, events_of

PROMPT = "def main():\n    return " * 4
GREEDY = {"temperature": 0, "max_new_tokens": 24}
SMALL = {"max_running_requests": 4, "page_size": 4, "memory": {"guards": True}}


@pytest.fixture(scope="module", params=LINEUP)
def served(request: pytest.FixtureRequest) -> Iterator[Serving]:
    with Serving(LINEUP[request.param].options(3, 2, 6) | SMALL, enable_metrics=True) as server:
        yield server
        assert server.said == []


def test_drafts_change_no_answer_and_are_accepted(served: Serving) -> None:
    body = {"text": PROMPT, "sampling_params": GREEDY, "return_logprob": True}
    drafted, plain = served.generate(**body), served.generate(**body, speculative=False)
    assert drafted["output_ids"] == plain["output_ids"]
    assert plain["meta_info"]["cached_tokens"] > 0
    assert drafted["meta_info"]["spec_accept_length"] > 1.5
    pairs = zip(drafted["meta_info"]["output_token_logprobs"], plain["meta_info"]["output_token_logprobs"], strict=True)
    assert all(one[:1] == pytest.approx(other[:1], abs=1e-3) and one[1] == other[1] for one, other in pairs)


def test_a_stream_adds_up_to_the_answer(served: Serving) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    answer = served.http.post("/v1/completions", json=body).json()
    with served.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        *events, done = events_of(response)
    assert done == "[DONE]"
    assert "".join(event["choices"][0]["text"] for event in events) == answer["choices"][0]["text"]


class Unheard(PipeSink):
    """Words up to the first of ``since`` still reach the front."""

    def __init__(self, channel: socket.socket, since: str) -> None:
        super().__init__(channel.fileno())
        self._since = since
        self._gone = False

    def emit(self, event: str, **fields: object) -> None:
        self._gone = self._gone or event == self._since
        if self._gone:
            super().emit(event, **fields)


@pytest.mark.parametrize("since", ["progress", "ready", "flushed", "gauges"])
def test_a_front_that_goes_is_no_failure_of_the_engine(since: str, capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(json.dumps({"do": "flush"}).encode() + b"\n")
    ours.close()
    with theirs, pytest.raises(FRONT_GONE):
        serve(Launch(dict(LINEUP["EAGLE v1"].options(3, 2, 6))), theirs, Unheard(theirs, since))
    assert capfd.readouterr().err == ""
    progress.report("")  # which its listener, were it left, would write to the channel that is closed


def test_of_a_device_that_the_look_at_guards_finds_lost_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(session: EmbeddedSession) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    seen = async_probe.ProbeFinding("draft.input_ids", "oob", 1, 0, 9, 1)
    monkeypatch.setattr(EmbeddedSession, "check_guards", lost)
    monkeypatch.setattr(async_probe, "salvage", lambda: [seen])
    monkeypatch.setattr(engine_loop, "leave_now", lambda: None)
    events = told_of_one_request()
    found = [(each["kind"], each["site"]) for each in events if each["event"] == "violation"]
    assert found[0] == ("oob", "draft.input_ids")
    assert [kind for kind, _ in found] == ["oob", "assert"]


def test_what_was_found_in_the_step_that_c_plus_plus_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    speaking: list[Callable[[], None]] = []

    def arrange(say: Callable[[], None]) -> Callable[[], None]:
        speaking.append(say)
        return speaking.clear

    def end(session: EmbeddedSession) -> None:
        (say,) = speaking
        say()
        raise AssertionError("here C++ ends the process")

    seen = async_probe.ProbeFinding("draft.input_ids", "oob", 1, 0, 9, 1)
    monkeypatch.setattr(engine_loop, "before_termination", arrange)
    monkeypatch.setattr(EmbeddedSession, "check_guards", end)
    monkeypatch.setattr(async_probe, "salvage", lambda: [seen])
    found = [each for each in told_of_one_request() if each["event"] == "violation"]
    assert [(each["kind"], each["step"]) for each in found] == [("oob", 1), ("assert", 1)]
    assert speaking == [], "after the run nothing of it is told any more"


def told_of_one_request() -> list[dict[str, Any]]:
    """What an engine tells until it fails over one request."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(json.dumps(Wish("a", [5, 6], {}).command("1", ahead=False)).encode() + b"\n")
        options = {**LINEUP["EAGLE v1"].options(3, 2, 6), "memory": {"guards": True}}
        assert serve(Launch(options), theirs, PipeSink(theirs.fileno())) == 1
        theirs.shutdown(socket.SHUT_WR)
        return [json.loads(line) for line in ours.makefile()]
