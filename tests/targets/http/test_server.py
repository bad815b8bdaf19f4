"""A server beside its requests: how its failure is named, which routes are asked, and its greedy text as reference."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.events import Finishing
from specdebug.logs.scan import scan_bytes
from specdebug.run.oracles.lossless import TIE_MARGIN, judge_output
from specdebug.scenario.workload import RequestSampling
from specdebug.targets.http.checked import BadAnswer
from specdebug.targets.http.client import Declined, ServerClient, Silent, Unreachable
from specdebug.targets.http.server import HttpServerView, failure_of, split
from specdebug.targets.requests import SessionFailed
from specdebug.verdict.signatures import complaint
from tests.heard import Heard
from tests.targets.http.fake import FakeServer, serving
from tests.targets.http.opened import add, drain, opened


class Process:
    """A server's process that ended so, or not, and left that log."""

    def __init__(self, ended: int | None, log: str = "", **tells: Any) -> None:
        self.ended = ended
        told: dict[str, Any] = {"findings": tuple} | tells
        self.log: Any = SimpleNamespace(
            path="/a/log", scan_run=lambda: scan_bytes(log.encode(), settings=False), **told
        )

    def status(self) -> int | None:
        return self.ended

    def release(self, sound: bool) -> None: ...


BROKEN = Unreachable("ReadError")
ASSERTION = "AssertionError: draft expand page_table (width decode_length + 1): used 3 > capacity 2\n"


@pytest.mark.parametrize(
    ("error", "host", "signature"),
    [
        (BROKEN, None, ("error", "http.connection")),
        (Declined(500, "no"), None, ("error", "http.500")),
        (Declined(500, "it died: fail nan@draft.x: 3 bad"), None, ("nan", "draft.x")),
        (BadAnswer("no JSON"), None, ("error", "http.answer")),
        (Silent("nothing came"), None, ("hang", "")),
        (BROKEN, Process(-11, ""), ("crash:SIGSEGV", "")),
        (BROKEN, Process(1, ""), ("error", "server.exit.1")),
        (BROKEN, Process(-11, "async probe nan@draft.x [3 bad]\n"), ("nan", "draft.x")),
        (BROKEN, Process(None, "async probe nan@draft.x [3 bad]\n"), ("nan", "draft.x")),
        (BROKEN, Process(None, "all is well\n"), ("error", "http.connection")),
        (BROKEN, Process(None, ASSERTION),
         ("assert", "server.draft-expand-page_table-width-decode_length-#-used-#-capacity-#")),
    ],
)  # fmt: skip
def test_the_name_of_a_failure(error: Exception, host: Process | None, signature: tuple[str, str]) -> None:
    failed = failure_of(error, host, "http://host:1", "a.0")
    assert (failed.kind, failed.site) == signature
    assert str(failed).startswith("request a.0: ")


@pytest.mark.parametrize(
    "name",
    [
        *("guard@a->b", "hang", "crash:SIGSEGV", "assert:x == y", "error:ValueError", "exit:3", "panic:x@q.rs"),
        *("assert:x>=#@scheduler.run", "error:KeyError:no key a@core.step", "hang@core.step", "assert:obj@ggml.c"),
    ],
)
def test_every_name_becomes_a_signature_that_a_scenario_can_state(name: str) -> None:
    kind, site = split(name)
    assert complaint(f"{kind}@{site}" if site else kind) is None


class Client:
    """Answers everything with one status and one body."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.asked: list[tuple[str, str]] = []

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        self.asked.append((method, path))
        return SimpleNamespace(status_code=self.status, text="busy")

    async def get_json(self, path: str, check: Any) -> dict[str, Any]:
        self.asked.append(("GET", path))
        return {"specdebug": {"violations": [{"signature": "nan@draft.x", "detail": "3 bad"}]}}


HOST = Process(None, findings=lambda: [("oob@draft.y", "4 bad")])


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def view(loop: asyncio.AbstractEventLoop, client: Client, *, host: Any = None, own: bool = False) -> HttpServerView:
    made = HttpServerView(client, loop, {}, host)  # type: ignore[arg-type]
    made.own = own
    return made


def test_what_is_wrong_is_said_with_its_route(loop: asyncio.AbstractEventLoop) -> None:
    wrong = view(loop, Client(503), host=HOST).check_alive(generates=True)
    assert wrong is not None
    assert (str(wrong), wrong.kind, wrong.site) == ("/generate answers 503 busy", "error", "server.health")


@pytest.mark.parametrize(
    ("status", "named", "words"),
    [
        (-11, ("crash:SIGSEGV", ""), "the server ended (signal 11); its log is /a/log"),
        (None, ("error", "server.health"), "/health: nobody listens"),
    ],
)
def test_of_a_server_that_has_ended_it_is_said_what_it_died_of(
    loop: asyncio.AbstractEventLoop, status: int | None, named: tuple[str, str], words: str
) -> None:
    class Gone(Client):
        url = "http://127.0.0.1:1"

        async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
            raise Unreachable("nobody listens")

    wrong = view(loop, Gone(), host=Process(status)).check_alive(generates=False)
    assert wrong is not None
    assert ((wrong.kind, wrong.site), str(wrong)) == (named, words)


ASKED: Any = SimpleNamespace(prompt_ids=(1, 2), sampling=RequestSampling(2, temperature=0.5, seed=7))


def test_a_request_is_asked_for_again_with_log_probabilities(loop: asyncio.AbstractEventLoop) -> None:
    with serving(FakeServer(speculative=False)) as fake:
        client = ServerClient(fake.url)
        ours = HttpServerView(client, loop, {}, None)
        assert ours.logprobs(ASKED) is None  # not known to be ours
        ours.own = True
        assert ours.logprobs(ASKED) == ([3, 4], [(3, -0.1, {3: -0.1, 4: -5.1}), (4, -0.1, {4: -0.1, 5: -5.1})])
        assert fake.served[0]["sampling_params"]["sampling_seed"] == 7
        fake.meta = {"output_top_logprobs": None}
        with pytest.raises(SessionFailed, match="lacks log probabilities that were asked for"):
            ours.logprobs(ASKED)
        loop.run_until_complete(client.close())


def test_a_text_is_asked_for_in_pieces_where_there_is_the_route(loop: asyncio.AbstractEventLoop) -> None:
    with serving(FakeServer(stammers=True)) as fake:
        client = ServerClient(fake.url)
        server = HttpServerView(client, loop, {}, None)
        assert server.pieces(ASKED) == ("3 3 4 ", "3 4 ")
        fake.status = {"/v1/completions": 404}
        assert server.pieces(ASKED) is None
        server.own = True
        with pytest.raises(SessionFailed):
            server.pieces(ASKED)
        fake.status, fake.choice = {}, {"text": 5}
        with pytest.raises(SessionFailed, match=r"choices\.0\.text is 5") as failed:
            server.pieces(ASKED)
        assert failed.value.site == "http.answer"
        loop.run_until_complete(client.close())


def judged(settings: dict[str, Any], **switches: Any) -> Any:
    with serving(FakeServer(**switches)) as fake:
        if "plain" in settings:
            settings = {**settings, "plain": fake.url}
        session = opened(fake, **settings)
        add(session, "a", tokens=6)
        drain(session)
        request, reference = session.request("a"), session.reference
        assert reference is not None
        found = judge_output(reference, request.prompt_ids, request.output_ids, TIE_MARGIN["float32"])
        told = judge_output(reference, request.prompt_ids, request.output_ids, TIE_MARGIN["bfloat16"])
        session.close(True)
    return found, told, fake


@pytest.mark.parametrize(
    ("switches", "wrong", "ties"),
    [
        ({}, ((), ()), []),
        ({"wrong_from": 2}, ((2,), (2,)), []),  # what follows is judged as it was emitted
        ({"wrong_from": 2, "near_tie": True}, ((2,), ()), [(2, 16, 15)]),  # where the dtype allows it
    ],
)
def test_a_text_is_held_against_the_server_s_own_without_drafts(
    switches: dict[str, Any], wrong: tuple[tuple[int, ...], ...], ties: list[tuple[int, int, int]]
) -> None:
    found, told, fake = judged({}, **switches)
    assert (found.wrong, told.wrong) == wrong
    assert [(tie.position, tie.token, tie.preferred) for tie in told.ties] == ties
    if not switches:
        assert found.choices == (13, 14, 15, 16, 17, 18)
        assert [body["speculative"] for body in fake.served if "speculative" in body] == [False, False]


def test_a_second_server_is_asked_without_the_switch() -> None:
    found, _, fake = judged({"plain": True}, switch=False)
    assert found.wrong == ()
    assert not any("speculative" in body for body in fake.served)


def test_a_server_s_own_text_is_asked_for_when_the_workload_is_over() -> None:
    """What it would cache meanwhile could be hit by requests to come."""

    heard = Heard(Finishing)
    with serving(FakeServer()) as fake:
        session = opened(fake)
        session.observers.add(heard)
        add(session, "a")
        drain(session)
        assert heard.events == []
        session.settle()
        assert [event.request.rid for event in heard.events] == ["a"]
        assert fake.flushes == 2
        session.close(True)
