"""The client of a server's interface, over a real connection."""

from __future__ import annotations

import asyncio

import pytest

from specdebug.targets.http.client import Declined, ServerClient
from tests.targets.http.redirecting import redirecting

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{"meta_info":{}}'


def test_no_connection_is_used_again_since_nobody_would_hear_the_server_close_it() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while (await reader.readuntil(b"\r\n\r\n")) and (await reader.read(2)) is not None:
                writer.write(ANSWER)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        client = ServerClient(f"http://{host}:{port}")
        try:
            for _ in range(2):
                assert await client.post("/generate", {}) == {"meta_info": {}}
                assert (await client.ask("POST", "/x", {})).status_code == 200
        finally:
            await client.close()
            server.close()

    asyncio.run(ask())
    assert connections == 4


def test_no_redirect_is_followed_for_the_key_is_of_the_server_that_was_named() -> None:
    async def ask(url: str) -> None:
        client = ServerClient(url, key="secret")
        try:
            assert (await client.ask("GET", "/health")).status_code == 307
            with pytest.raises(Declined) as got:
                await client.get_json("/server_info", {})
            assert got.value.status == 307
            with pytest.raises(Declined):
                await client.post("/generate", {})
            with pytest.raises(Declined):
                await anext(client.stream("/generate", {}))
        finally:
            await client.close()

    with redirecting() as (url, asked, elsewhere):
        asyncio.run(ask(url))
    assert asked == ["Bearer secret"] * 4
    assert elsewhere == []
