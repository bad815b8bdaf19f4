"""Which routes of a server are asked whether it is well, and what it found."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.scenario.workload import RequestSampling
from specdebug.targets.http.client import ServerClient, Unreachable
from specdebug.targets.http.server_view import HttpServerView
from specdebug.targets.serving import SessionFailed
from tests.targets.http.fake import FakeServer, serving
from tests.targets.http.test_failures import Process


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
        loop.run_until_complete(client.close())
