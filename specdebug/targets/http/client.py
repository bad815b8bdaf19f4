"""HTTP to one server: JSON in and out, server-sent events, a bounded number of connections."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from specdebug.errors import one_line


class Unreachable(Exception):
    """The connection failed, or broke before the answer was whole."""


class Silent(Exception):
    """Nothing came for as long as a request may take."""


class BadAnswer(Exception):
    """An answer that is none of the interface's."""


class Declined(Exception):
    """An answer with an error's status, or an event that tells of one."""

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


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
        # No connection is used again: while requests are judged nobody hears a server close one that is idle.
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=0)
        secure = self.url.startswith("https:")  # else to read the certificates of authorities is time lost
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
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

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        """An answer as it came, whatever its status."""
        with self._failing():
            return await self._aside.request(method, path, json=body)

    async def get_json(self, path: str) -> dict[str, Any]:
        """The object that a route answers."""
        answer = await self.ask("GET", path)
        _raise_for(answer, answer.content)
        return _object(answer.content)

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The object that a request is answered with."""
        with self._failing():
            answer = await self._http.post(path, json=body)
        _raise_for(answer, answer.content)
        return _object(answer.content)

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a streamed answer, to its end."""
        with self._failing():
            async with self._http.stream("POST", path, json=body) as answer:
                if answer.status_code >= 400:
                    _raise_for(answer, await answer.aread())
                done = False
                async for line in answer.aiter_lines():  # to its end: only then is the connection free for another
                    if done or not line.startswith("data:"):
                        continue
                    text = line.removeprefix("data:").strip()
                    done = text == "[DONE]"
                    if not done:
                        event = _object(text)
                        if "error" in event:
                            raise Declined(*_told(event, 500))
                        yield event
        if not done:
            raise Unreachable("the stream broke off before [DONE]")

    @contextmanager
    def _failing(self) -> Any:
        try:
            yield
        except httpx.TimeoutException as error:
            raise Silent(f"nothing came for {self._timeout_s:g} s ({type(error).__name__})") from None
        except httpx.HTTPError as error:
            raise Unreachable(one_line(f"{type(error).__name__}: {error}", 160)) from None


def _object(content: bytes | str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        shown = content if isinstance(content, str) else content[:200].decode("utf-8", "replace")
        raise BadAnswer(f"not a JSON object: {one_line(shown, 80)!r}")
    return found


def _raise_for(answer: httpx.Response, content: bytes) -> None:
    """Raise Declined for a status that says so."""
    if answer.status_code < 400:
        return
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    told = found if isinstance(found, dict) else {"message": content[:500].decode("utf-8", "replace")}
    wait = answer.headers.get("Retry-After", "")
    _, message = _told(told, answer.status_code)
    raise Declined(answer.status_code, message, float(wait) if wait.isdigit() else None)


def _told(document: Mapping[str, Any], status: int) -> tuple[int, str]:
    """Status and words of an error in SGLang's form, OpenAI's, or FastAPI's."""
    inside = document.get("error", document)
    if not isinstance(inside, Mapping):
        return status, one_line(str(inside), 300)
    message = inside.get("message") or inside.get("detail") or "no reason given"
    code = inside.get("code")
    return (code if isinstance(code, int) else status), one_line(str(message), 300)
