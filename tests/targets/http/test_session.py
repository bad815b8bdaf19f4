"""Requests on a server: what is sent, what is taken from the answers, aborts, flushes, and how failures are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from specdebug.targets.base import Asked
from specdebug.targets.http.client import ServerClient
from specdebug.targets.http.server import ServerInfo
from specdebug.targets.http.session import HttpSession
from specdebug.targets.http.target import HttpTarget, open_session
from specdebug.targets.requests import CannotBeServed, SessionFailed
from specdebug.targets.settings import HttpServer
from tests.targets.http.fake import FakeServer, serving
from tests.targets.http.opened import add, drain, opened, opening
from tests.targets.http.test_server import Process

Open = Callable[..., tuple[FakeServer, HttpSession]]


@pytest.fixture
def server() -> Iterator[Open]:
    with ExitStack() as stack:

        def start(
            options: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, **switches: Any
        ) -> Any:
            fake = stack.enter_context(serving(FakeServer(**switches)))
            session = opened(fake, options, **(settings or {}))
            stack.callback(session.close, True)
            fake.served.clear()
            return fake, session

        yield start


def test_a_request_ends_with_its_tokens_its_counts_and_its_reason(server: Open) -> None:
    fake, session = server({"speculative": {"algorithm": "EAGLE"}})
    add(session, "a", first=10, tokens=5)
    (report,) = drain(session)
    request = session.request("a")
    assert (report.finished, report.emitted) == (("a",), {"a": [13, 14, 15, 16, 17]})
    assert list(request.output_ids) == [13, 14, 15, 16, 17]
    assert (request.finish_reason, request.cached_tokens) == ("length", 0)
    assert sorted(request.accept_lengths) == [2, 2]
    assert request.kv_len == 3 + 5 - 1
    (sent,) = fake.served
    asked = {"max_new_tokens": 5, "temperature": 0.0, "skip_special_tokens": False, "ignore_eos": True}
    assert sent["sampling_params"] == asked
    assert sent["stream"] is True
    assert "speculative" not in sent


@pytest.mark.parametrize("switches", [{"old": True}, {"incremental": True}, {"old": True, "incremental": True}])
@pytest.mark.parametrize("stream", [True, False])
def test_older_servers_and_those_that_stream_what_is_new_are_read_alike(
    server: Open, switches: dict[str, bool], stream: bool
) -> None:
    if switches.get("incremental") and not stream:
        pytest.skip("a whole answer holds all tokens on any server")
    fake, session = server(settings={"stream": stream}, **switches)
    add(session, "a", first=10, tokens=4)
    (report,) = drain(session)
    assert report.emitted == {"a": [13, 14, 15, 16]}
    assert session.request("a").output_ids == [13, 14, 15, 16]
    assert ("return_logprob" in fake.served[0]) is bool(switches.get("old"))


def test_sampling_goes_by_sglang_s_names(server: Open) -> None:
    fake, session = server(switch=False)
    add(session, "a", temperature=0.7, top_k=5, top_p=0.9, stop_token_ids=(14,))
    drain(session)
    assert fake.served[0]["sampling_params"] == {
        "max_new_tokens": 5, "skip_special_tokens": False,
        "temperature": 0.7, "top_k": 5, "top_p": 0.9, "stop_token_ids": [14],
    }  # fmt: skip
    assert (session.request("a").finish_reason, session.request("a").output_ids) == ("stop", [13, 14])


@pytest.mark.parametrize(("switch", "sent"), [(True, [False]), (False, [])])
def test_drafts_are_left_out_where_the_server_can_do_that_and_else_it_is_told(
    server: Open, switch: bool, sent: list[bool]
) -> None:
    told: list[str] = []
    say = lambda event, **fields: told.append(fields["text"]) if event == "note" else None  # noqa: E731
    fake, session = server(settings={"say": say}, switch=switch)
    add(session, "a", speculative=False)
    add(session, "b", speculative=False)
    drain(session)
    assert [body["speculative"] for body in fake.served if "speculative" in body] == sent * 2
    assert told == ([] if switch else ["this server cannot leave out drafts for a request; all are served with them"])


def test_an_aborted_request_has_ended_when_abort_returns_and_nothing_is_reported_of_it(server: Open) -> None:
    fake, session = server(hold=threading.Event())
    add(session, "a")
    session.abort("a")
    session.abort("a")
    request = session.request("a")
    assert (session.has_work, request.finish_reason, list(request.output_ids)) == (False, "abort", [])
    assert [rid.endswith("-a") for rid in fake.aborted] == [True]


def test_the_cache_is_flushed_before_the_run_and_when_asked(server: Open) -> None:
    fake, session = server()
    assert fake.flushes == 1
    add(session, "a")
    drain(session)
    add(session, "b")
    drain(session)
    assert (session.request("a").cached_tokens, session.request("b").cached_tokens) == (0, 1)
    session.flush_cache()
    add(session, "c")
    drain(session)
    assert (fake.flushes, session.request("c").cached_tokens) == (2, 0)
    fake, session = server(settings={"flush": False})
    assert fake.flushes == 0
    assert "cache_flush" not in session.shows


@pytest.mark.parametrize(
    ("switches", "shown"),
    [
        ({}, {"accept_lengths", "cache_flush", "plain", "failures"}),
        ({"speculative": False}, {"cache_flush", "plain", "failures"}),
        ({"switch": False}, {"accept_lengths", "cache_flush"}),
        ({"model": "tiny"}, {"accept_lengths", "cache_flush", "plain", "logits", "failures"}),
    ],
)  # fmt: skip
def test_what_a_server_says_of_itself_decides_what_is_shown(
    server: Open, switches: dict[str, Any], shown: set[str]
) -> None:
    _, session = server(**switches)
    assert session.shows == {"cached_tokens", "tokens", "alive", "counts"} | shown


def test_a_declined_request_is_the_scenario_s_fault(server: Open) -> None:
    fake, session = server()
    fake.status["/generate"] = 400
    add(session, "a")
    with pytest.raises(CannotBeServed, match="'a' is declined by the server: no") as caught:
        drain(session)
    assert (caught.value.exit_code, caught.value.rid) == (2, "a")


@pytest.mark.parametrize(
    ("break_it", "signature"),
    [
        (lambda fake: fake.status.update({"/generate": 500}), ("error", "http.500")),
        (lambda fake: setattr(fake, "die_after", 0), ("error", "http.connection")),
        (lambda fake: fake.event.update(error={"message": "it died: fail guard@a.b->c: x"}), ("guard", "a.b->c")),
        (lambda fake: fake.event.update(meta_info=None), ("error", "http.answer")),
        (lambda fake: fake.event.update(output_ids="x"), ("error", "http.answer")),
    ],
)  # fmt: skip
def test_a_server_that_fails_ends_the_run_in_what_it_died_of(
    server: Open, break_it: Callable[[FakeServer], None], signature: tuple[str, str]
) -> None:
    fake, session = server()
    break_it(fake)
    add(session, "a")
    with pytest.raises(SessionFailed, match="request a: ") as caught:
        drain(session)
    assert (caught.value.kind, caught.value.site) == signature


def test_a_server_that_is_silent_hangs(server: Open) -> None:
    fake, session = server(settings={"request_timeout_s": 0.2})
    fake.hold = threading.Event()
    add(session, "a")
    with pytest.raises(SessionFailed) as caught:
        drain(session)
    assert (caught.value.kind, caught.value.site) == ("hang", "")
    fake.hold.set()


def test_a_stream_that_takes_back_what_it_said_is_told(server: Open) -> None:
    fake, session = server()
    answer, texts = fake.answer, iter(["x y", "x", "x y z", "x y z", "x"])

    def changed(*args: Any) -> dict[str, Any]:
        return {**answer(*args), "text": next(texts)}

    fake.answer = changed  # type: ignore[method-assign]
    add(session, "a")
    drain(session)
    assert "'x y' at the end and then 'x'" in str(session.server.revised("a"))


def test_what_the_first_token_that_is_asked_for_brings_to_light_is_the_run_s() -> None:
    fake, log = FakeServer(), ["nan@of.before"]
    answer = fake.answer

    def failing(*args: Any) -> dict[str, Any]:
        log.append("oob@of.this")
        return answer(*args)

    fake.answer = failing  # type: ignore[method-assign]
    host = Process(None, findings=lambda: [(log.pop(0), "a line") for _ in list(log)])
    with serving(fake):
        settings = HttpServer(url=fake.url, request_timeout_s=20.0)
        session = open_session(fake.url, settings, HttpTarget(settings).asked({}), opening(), host)
        assert session.server.findings() == [("oob@of.this", "a line")]
        session.close(True)


def test_what_the_server_tells_of_failures_is_told_once_and_what_it_told_before_the_run_never(server: Open) -> None:
    told = {"violations": [{"signature": "nan@draft.x", "detail": "3 of 4"}], "reverts": {"1": {"1#1": 2}}}
    _, session = server(told={"specdebug": told})
    assert session.server.findings() == []
    told["violations"].append({"signature": "oob@draft.y", "detail": "1 of 4"})  # type: ignore[attr-defined]
    assert session.server.findings() == [("oob@draft.y", "1 of 4")]
    assert session.server.findings() == []
    assert session.server.hits() == {"1": {"1#1": 2}}


def test_outputs_are_cut_to_a_context_that_the_target_knows() -> None:
    """SGLang declines a request whose prompt and output do not fit; our engine ends it there."""
    told: list[str] = []
    with serving(FakeServer()) as fake:
        client = ServerClient(fake.url, connections=4, timeout_s=20.0, key=None)
        loop, asked = asyncio.new_event_loop(), Asked("tiny", context_length=6)
        say = opening(lambda event, **fields: told.append(fields.get("text", "")))
        session = HttpSession(client, HttpServer(url=fake.url), asked, frozenset(), loop, ServerInfo(), say)
        add(session, "cut", tokens=5)
        add(session, "whole", tokens=3)
        drain(session)
        assert [len(session.request(rid).output_ids) for rid in ("cut", "whole")] == [3, 3]
        assert session.request("cut").sampling.max_new_tokens == 3
        session.close(True)
    assert told[0] == "outputs end with the context of 6 tokens; this server takes no longer requests"


@pytest.mark.parametrize("block", [None, "ours", {"violations": [{"detail": "x"}]}, {"violations": [{"step": "3"}]}])
def test_a_block_of_ours_that_is_malformed_is_an_answer_that_is_none(server: Open, block: Any) -> None:
    fake, session = server()
    fake.told["specdebug"] = block
    view = session.server
    for look in (view.findings, view.totals):
        with pytest.raises(SessionFailed, match=r"^/server_info: specdebug") as caught:
            look()
        assert (caught.value.kind, caught.value.site) == ("error", "http.answer")
    assert (view.hits(), view.reached()) == ({}, {})  # what a run's end adds is left out, and its failure stands
