"""HTTP to one server: JSON in and out, server-sent events, a bounded number of connections."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from specdebug.base.errors import one_line
from specdebug.targets.http.checked import GENERATED, BadAnswer, Check, read

MOST_BYTES = 8 << 20
"""Bytes of an answer, or of an event of a streamed one, at most."""


class Unreachable(Exception):
    """The connection failed, or broke before the answer was whole."""


class Silent(Exception):
    """Nothing came for as long as a request may take."""


class Declined(Exception):
    """An answer with the status of an error or a redirect, or an event that tells of one."""

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class HttpReply:
    """An answer as it came, whatever its status. ``wait``: its Retry-After."""

    status_code: int
    content: bytes
    wait: str = ""

    @property
    def text(self) -> str:
        """The beginning of the body, for people."""
        return self.content[:500].decode("utf-8", "replace")


FAILURES = (Unreachable, Silent, BadAnswer, Declined)
"""All that a call can raise."""


class ServerClient:
    """One server's routes. Every call raises one of :data:`FAILURES`."""

    def __init__(
        self,
        url: str,
        *,
        connections: int = 64,
        timeout_s: float = 60.0,
        key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        # No connection is used again: while requests are judged no loop hears a server close one that is idle.
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=0)
        secure = self.url.startswith("https:")  # else to read the certificates of authorities is time lost
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            limits=limits,
            timeout=httpx.Timeout(timeout_s, pool=None),
            trust_env=False,  # a proxy is not the server that was named
            verify=secure,
            transport=transport,
        )
        # Beside those of requests: what ends or checks on them must not wait for them.
        self._aside = httpx.AsyncClient(
            base_url=self.url,
            headers=self._http.headers,
            limits=httpx.Limits(max_keepalive_connections=0),
            timeout=timeout_s,
            trust_env=False,
            verify=secure,
            transport=transport,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()
        await self._aside.aclose()

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> HttpReply:
        """An answer as it came, whatever its status."""
        async with self._answering(self._aside, method, path, body) as answer:
            return await _whole(path, answer)

    async def get_json(self, path: str, check: Check) -> dict[str, Any]:
        """The object that a route answers, checked."""
        answer = await self.ask("GET", path)
        _raise_for(answer)
        return _object(path, answer.content, check)

    async def post(self, path: str, body: Mapping[str, Any], check: Check = GENERATED) -> dict[str, Any]:
        """The object that a request is answered with, checked."""
        async with self._answering(self._http, "POST", path, body) as streamed:
            answer = await _whole(path, streamed)
        _raise_for(answer)
        return _object(path, answer.content, check)

    async def stream(
        self, path: str, body: Mapping[str, Any], check: Check = GENERATED
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a streamed answer, checked, to its end."""
        async with self._answering(self._http, "POST", path, body) as answer:
            if answer.status_code >= 300:
                _raise_for(await _whole(path, answer))
            if answer.headers.get("Content-Type", "").startswith("application/json"):
                raise BadAnswer(
                    f"{path}: `stream: true` was answered with plain JSON; a front without streams needs "
                    "`stream: false` in the target"
                )
            done = False
            async for line in _lines(path, answer):  # to its end: only then is the connection free for another
                if done or not line.startswith(b"data:"):
                    continue
                data = line.removeprefix(b"data:").strip()
                done = data == b"[DONE]"
                if not done:
                    event = _document(path, data)
                    if event.get("error") is not None:
                        raise Declined(*_told(event, 500))
                    yield read(path, check, event)
        if not done:
            raise Unreachable("the stream broke off before [DONE]")

    @asynccontextmanager
    async def _answering(
        self, client: httpx.AsyncClient, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncIterator[httpx.Response]:
        try:
            async with client.stream(method, path, json=body) as answer:
                yield answer
        except httpx.TimeoutException as error:
            raise Silent(f"nothing came for {self._timeout_s:g} s ({type(error).__name__})") from None
        except httpx.HTTPError as error:
            raise Unreachable(one_line(f"{type(error).__name__}: {error}", 160)) from None


async def _whole(path: str, answer: httpx.Response) -> HttpReply:
    body = bytearray()
    async for part in answer.aiter_bytes():
        body += part
        if len(body) > MOST_BYTES:
            raise BadAnswer(f"{path}: the answer has more than {MOST_BYTES >> 20} MiB")
    return HttpReply(answer.status_code, bytes(body), answer.headers.get("Retry-After", ""))


async def _lines(path: str, answer: httpx.Response) -> AsyncIterator[bytes]:
    rest = b""
    async for part in answer.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > MOST_BYTES:
            raise BadAnswer(f"{path}: an event of the stream has more than {MOST_BYTES >> 20} MiB")
    if rest:
        yield rest


def _document(path: str, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadAnswer(f"{path}: not a JSON object: {one_line(content[:200].decode('utf-8', 'replace'), 80)!r}")
    return found


def _object(path: str, content: bytes, check: Check) -> dict[str, Any]:
    checked: dict[str, Any] = read(path, check, _document(path, content))
    return checked


def _raise_for(answer: HttpReply) -> None:
    """Raise Declined for a status that says so. A redirect does: the key is of the server that was named."""
    if answer.status_code < 300:
        return
    try:
        found = json.loads(answer.content)
    except (ValueError, RecursionError):
        found = None
    told = found if isinstance(found, dict) else {"message": answer.text}
    wait = answer.wait
    _, message = _told(told, answer.status_code)
    raise Declined(answer.status_code, message, float(wait) if wait.isascii() and wait.isdecimal() else None)


def _told(document: Mapping[str, Any], status: int) -> tuple[int, str]:
    """Status and words of an error in SGLang's form, OpenAI's, or FastAPI's."""
    inside = document.get("error", document)
    if not isinstance(inside, Mapping):
        return status, one_line(str(inside), 300)
    message = inside.get("message") or inside.get("detail") or "no reason given"
    code = inside.get("code")
    return (code if type(code) is int and 400 <= code < 600 else status), one_line(str(message), 300)
