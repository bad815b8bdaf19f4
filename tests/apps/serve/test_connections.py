"""Clients that send or read slowly, or not at all: each is cut when it is due, and others are served meanwhile."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import Response
from uvicorn.server import ServerState

from specdebug.apps.serve.connections import Connection, ConnectionLimits, Connections, FrontConfig
from specdebug.apps.serve.fields import ClientGone, Refusal
from tests.apps.serve.serving import EAGLE, Serving, wait_until

LIMITS = ConnectionLimits(head_s=10, body_s=30, unread_s=100, connections=8, bytes=1000)
HEAD = b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"


class Pipe(asyncio.Transport):
    """A transport whose client takes what it is told to take."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0
        self.aborted = False

    def write(self, data: Any) -> None:
        self.unsent += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return self.aborted

    pause_reading = resume_reading = close = lambda self: None

    def abort(self) -> None:
        self.aborted = True


class Crowd:
    """Connections whose clock is ``time``; each request is answered with ``answer`` bytes once ``go`` is set."""

    def __init__(self) -> None:
        self.time = 0.0
        self.answer = b"x"
        self.answer_at_once = False
        self.go = asyncio.Event()
        self.table = Connections(LIMITS, lambda: self.time)
        self._config = FrontConfig(self._app, self.table, lifespan="off", log_config=None, interface="asgi3")
        self._state = ServerState()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        while not self.answer_at_once and (await receive()).get("more_body"):
            pass
        if not self.answer_at_once:
            await self.go.wait()
        await Response(self.answer)(scope, receive, send)

    def connect(self) -> tuple[Connection, Pipe]:
        connection, pipe = Connection(self._config, self._state, {}), Pipe()
        connection.connection_made(pipe)
        return connection, pipe

    async def at(self, time: float) -> None:
        """Have everything happen that can, then look at this time."""
        for _ in range(10):
            await asyncio.sleep(0)
        self.time = time
        await self.table.look()


def played(play: Callable[[Crowd], Any]) -> Callable[[], None]:
    """A test in asyncio, with a crowd."""

    def test() -> None:
        async def main() -> None:
            await play(Crowd())

        asyncio.run(main())

    test.__doc__ = play.__doc__
    return test


@played
async def test_half_a_head_has_a_deadline(crowd: Crowd) -> None:
    _, silent = crowd.connect()
    slow, slowly = crowd.connect()
    for second in range(11):
        slow.data_received(HEAD[second : second + 1])
        await crowd.at(second)
    assert not silent.aborted
    await crowd.at(11)
    assert (silent.aborted, slowly.aborted, len(crowd.table)) == (True, True, 0)


@played
async def test_nonsense_behind_an_answer_ends_the_connection(crowd: Crowd) -> None:
    crowd.answer_at_once = True
    connection, pipe = crowd.connect()
    connection.data_received(b"POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    await crowd.at(1)
    assert pipe.unsent
    connection.data_received(b"no chunk\r\n")
    assert pipe.aborted


@played
async def test_an_answer_that_lies_unread_has_a_deadline(crowd: Crowd) -> None:
    crowd.go.set()
    crowd.answer = b"x" * 10_000
    (slow, slowly), (none, unread) = crowd.connect(), crowd.connect()
    for each in (slow, none):
        each.data_received(HEAD + b"0123456789")
    for second in range(0, 101, 10):
        await crowd.at(second)
        slowly.unsent -= 1
    await crowd.at(111)
    assert (slowly.aborted, unread.aborted) == (False, True)


@played
async def test_of_too_many_connections_those_are_cut_that_send_nothing(crowd: Crowd) -> None:
    busy, working = crowd.connect()
    busy.data_received(HEAD + b"0123456789")
    await crowd.at(0)
    crowded = []
    for second in range(1, 20):
        crowded.append(crowd.connect()[1])
        await crowd.at(second / 10)
    assert len(crowd.table) == LIMITS.connections
    assert [pipe.aborted for pipe in crowded] == [True] * 12 + [False] * 7
    assert not working.aborted


@played
async def test_memory_is_held_until_the_answer_is_read(crowd: Crowd) -> None:
    crowd.go.set()
    (one, first), (two, _) = crowd.connect(), crowd.connect()
    one.hold(600)
    one.data_received(HEAD + b"0123456789")
    await crowd.at(1)
    with pytest.raises(Refusal, match="as many requests as it has memory for") as raised:
        two.hold(600)
    assert raised.value.status == 503
    first.unsent = 0
    two.hold(600)
    assert crowd.table.held == 600
    two.hold(200)
    assert crowd.table.held == 200


@played
async def test_where_memory_is_short_answers_that_nobody_reads_go_first(crowd: Crowd) -> None:
    crowd.go.set()
    pairs = [crowd.connect() for _ in range(3)]
    for connection, _ in pairs:
        connection.hold(300)
        connection.data_received(HEAD + b"0123456789")
    await crowd.at(1)
    new, _ = crowd.connect()
    pairs[1][1].unsent += 1
    await crowd.at(3)
    pairs[1][1].unsent -= 1
    await crowd.at(4)
    new.hold(300)
    assert [pipe.aborted for _, pipe in pairs] == [True, False, False]
    assert crowd.table.held == 900


@played
async def test_where_memory_is_short_the_slowest_body_goes_first(crowd: Crowd) -> None:
    pairs = [crowd.connect() for _ in range(3)]
    for second, (connection, _) in enumerate(pairs):
        connection.data_received(HEAD)
        await crowd.at(second)
        connection.hold(300)
    new, _ = crowd.connect()
    new.hold(300)
    assert [pipe.aborted for _, pipe in pairs] == [True, False, False]
    with pytest.raises(ClientGone):
        pairs[0][0].hold(1)
    assert crowd.table.held == 900


@played
async def test_what_can_never_be_held_is_the_request_s_fault(crowd: Crowd) -> None:
    with pytest.raises(Refusal, match="ask for fewer prompts") as raised:
        crowd.connect()[0].hold(1001)
    assert raised.value.status == 400


@pytest.fixture
def hasty() -> Iterator[Serving]:
    limits = ConnectionLimits(head_s=0.2, body_s=0.2, unread_s=0.5, connections=16)
    with Serving({**EAGLE, "max_running_requests": 2}, limits) as server:
        yield server


def connected(serving: Serving, data: bytes) -> socket.socket:
    host, port = serving.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.sendall(data)
    return sock


@pytest.mark.parametrize("data", [b"", b"POST /generate HTTP/1.1\r\nHost: localh", HEAD + b"{"])
def test_half_a_request_is_cut_and_others_are_served(hasty: Serving, data: bytes) -> None:
    socks = [connected(hasty, data) for _ in range(30)]
    assert hasty.generate(text="x", sampling_params={"max_new_tokens": 1})["text"]
    for sock in socks:
        with sock:
            while True:
                try:
                    if not sock.recv(4096):
                        break
                except ConnectionResetError:
                    break
    assert hasty.generate(text="x", sampling_params={"max_new_tokens": 1})["text"]


def test_streams_that_nobody_reads_are_cut_and_leave_nothing(hasty: Serving) -> None:
    body = {"text": "def f(", "stream": True, "sampling_params": {"max_new_tokens": 800, "ignore_eos": True}}
    data = json.dumps(body).encode()
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data)
    socks = [connected(hasty, head + data) for _ in range(4)]
    wait_until(lambda: hasty.client.totals.running, "they run")
    wait_until(hasty.idle, "they are cut")
    for sock in socks:
        sock.close()
    assert hasty.generate(text="x", sampling_params={"max_new_tokens": 1})["text"]
