"""vLLM's engine as a session: what a step decided, what oracles are told of its requests, and how it fails."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from specdebug.events import Decided, Finishing, Prefilled, StepBegan, StepOver, Stepped
from specdebug.targets.base import Asked, Busy, Opening
from specdebug.targets.requests import CannotBeServed, SessionFailed
from specdebug.targets.vllm import session as module
from specdebug.targets.vllm.session import VllmSession
from specdebug.targets.vllm.target import SHOWS
from tests.targets.vllm.fake_engine import Engine


@dataclass(frozen=True)
class Sampling:
    max_new_tokens: int = 5
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int = 0


class Served:
    """A session of a fake engine, what it said, and the events of its requests with what could be looked at then."""

    hears = (StepBegan, StepOver, Prefilled, Decided, Finishing)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "params_of", lambda sampling, *_, **__: sampling)
        self.said: list[tuple[str, Any]] = []
        self.told: list[tuple[Any, ...]] = []
        self.engine = Engine()
        opening = Opening("a", self._say, Busy(self._say))
        self.session = VllmSession(self.engine, Asked("tiny"), SHOWS - {"pools"}, opening)
        self.session.observers.add(self)

    def _say(self, event: str, **fields: Any) -> None:
        self.said.append((event, fields.get("text")))

    def on(self, event: Any) -> None:
        if isinstance(event, Prefilled | Finishing):
            request = event.request
            holds = request.rid in self.engine.scheduler.requests
            self.told.append((type(event).__name__, request.rid, request.kv_len, list(request.output_ids), holds))
        elif isinstance(event, Decided):
            self.told.append(("Decided", *(each.rid for each in event.requests), event.tokens.tolist()))
        else:
            self.told.append((type(event).__name__, *vars(event).values()))

    def add(self, rid: str, prompt: list[int], sampling: Sampling | None = None, *, speculative: bool = True) -> None:
        self.session.add(rid, prompt, sampling or Sampling(), speculative=speculative)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    return Served(monkeypatch)


def test_steps_say_what_was_prefilled_and_accepted_and_how_a_request_ended(served: Served) -> None:
    served.add("a", [1, 2, 3, 4, 1])
    steps = [served.session.advance() for _ in range(4)]
    assert steps[0] == Stepped(1, "prefill", ("a",))
    assert steps[1] == Stepped(2, "prefill", ("a",), {"a": [2]}, cached={"a": 1})
    assert steps[2].emitted == {"a": [3, 4, 5, 6]}
    assert (steps[2].kind, steps[2].accept_lengths, steps[2].finished) == ("decode", {"a": 4}, ("a",))
    assert steps[3] == Stepped(4, "idle")
    request = served.session.request("a")
    assert (request.finish_reason, request.accept_lengths, request.cached_tokens) == ("length", [4], 1)
    assert not served.session.has_work
    assert [each for each in served.told if not each[0].startswith("Step")] == [
        ("Prefilled", "a", 5, [2], True),
        ("Decided", "a", [[2, 3, 4, 5]]),
        ("Finishing", "a", 9, [2, 3, 4, 5, 6], True),
    ]
    assert served.told[0] == ("StepBegan", 1)


def test_a_stop_string_cuts_what_a_verify_accepted(served: Served) -> None:
    served.add("a", [1, 2], Sampling(max_new_tokens=9, stop=("x",)))
    served.session.advance()
    served.engine.stops = {"a": 2}
    served.session.advance()
    assert len(served.engine.scheduler.requests) == 0
    (finishing,) = [each for each in served.told if each[0] == "Finishing"]
    _, rid, kv_len, output, holds = finishing
    assert (rid, kv_len, len(output), holds) == ("a", 3, 2, True)


def test_a_stop_token_cuts_what_a_verify_accepted(served: Served) -> None:
    served.add("a", [1, 2], Sampling(stop_token_ids=(4,)))
    served.session.advance()
    step = served.session.advance()
    request = served.session.request("a")
    assert (step.emitted, step.accept_lengths) == ({"a": [4]}, {"a": 4})
    assert (request.finish_reason, request.matched_stop, request.kv_len) == ("stop", 4, 3)


def test_one_that_is_put_back_is_prefilled_again_and_has_no_drafts_meanwhile(served: Served) -> None:
    served.add("a", [1, 2], Sampling(9))
    served.add("b", [2, 3], Sampling(2))
    served.session.advance()
    served.engine.preempts = "a"
    step = served.session.advance()
    assert (step.kind, step.rids, step.retracted) == ("prefill", ("a", "b"), ("a",))
    assert (step.accept_lengths, step.emitted["a"]) == ({"b": 4}, [4])
    assert [each[1] for each in served.told if each[0] == "Prefilled"] == ["a", "b", "a"]


def test_files_that_an_engine_makes_while_it_is_built_are_removed() -> None:
    before = tempfile.gettempdir()
    with module._files_of_its_own():
        made = Path(tempfile.gettempdir()) / "vllm_dist"
        made.touch()
    assert (made.parent.exists(), tempfile.gettempdir()) == (False, before)


class Waiting(list[str]):
    add_request = list.append

    def pop_request(self) -> str:
        return self.pop(0)


def test_a_rank_that_falls_behind_takes_requests_in_a_step_later(served: Served) -> None:
    waiting = served.engine.scheduler.waiting = Waiting("ab")  # type: ignore[attr-defined]
    served.session.fall_behind()
    assert waiting == []
    served.session.advance()
    assert waiting == ["a", "b"]


def test_what_a_request_drafts_from_travels_as_a_row(served: Served) -> None:
    for rid, prompt in (("a", [1, 2]), ("b", [2, 3])):
        served.add(rid, prompt)
    assert served.session.request("a").stored is None  # type: ignore[attr-defined]
    served.session.advance()
    requests = [served.session.request(rid) for rid in "ab"]
    rows = [request.stored for request in requests]  # type: ignore[attr-defined]
    whole, joined = served.session.draft_state(requests), served.session.joined(rows)
    for name in ("seq_lens", "bonus", "topk_p", "topk_index", "hidden_states"):
        assert torch.equal(getattr(whole, name), getattr(joined, name))


def test_what_cannot_be_served_and_what_differs_is_said(served: Served) -> None:
    with pytest.raises(CannotBeServed, match="request 'a' is declined by the engine: too long"):
        served.add("a", [0])
    served.add("b", [1] * 18, Sampling(9), speculative=False)
    assert served.session.request("b").sampling.max_new_tokens == 2
    assert [text.partition(";")[0] for _, text in served.said] == [
        "this engine cannot leave out drafts for a request",
        "outputs end with the context of 20 tokens",
    ]
    served.session.abort("b")
    assert served.session.request("b").finish_reason == "abort"
    assert not any(each[0] == "Finishing" for each in served.told)


def test_the_engine_s_exception_is_named_as_its_traceback_would_be(served: Served) -> None:
    served.add("a", [1])
    served.engine.fails = KeyError("lost")
    with pytest.raises(SessionFailed, match="the engine failed: KeyError: 'lost'") as failed:
        served.session.advance()
    assert (failed.value.kind, failed.value.site) == ("error", "server.error.KeyError.fake_engine.step")
    assert served.told[-1] == ("StepOver", True)
    served.engine.fails = RuntimeError("async probe nan@verify.logits: NaN [step 1, 1 bad, first nan at 0]")
    with pytest.raises(RuntimeError, match="async probe nan@verify"):
        served.session.advance()


def test_a_cache_that_cannot_be_flushed_is_a_failure(served: Served) -> None:
    served.session.flush_cache()
    served.engine.flushes = False
    with pytest.raises(SessionFailed, match="blocks are held"):
        served.session.flush_cache()


def test_each_law_is_told_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    laws = ["locks: one", "locks: two", "rows: three"]
    monkeypatch.setattr(module, "check_books", lambda _: laws)
    assert served.session.check_pools() == ["locks: one", "rows: three"]
    assert served.session.check_pools() == []
