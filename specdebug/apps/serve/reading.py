"""Bodies of requests: taken in no further than there is memory for, and measured before they are made into objects.

JSON grows as it is read: three bytes of it can become a list of a hundred. Large bodies are read one at a time, in a
thread, so that others are served meanwhile.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request

from specdebug.apps.serve.answers import ClientGone
from specdebug.apps.serve.fields import BadField, TooBig, parse
from specdebug.apps.serve.state import ServerState

T = TypeVar("T")

ASIDE_BYTES = 16 << 10
"""Bodies of so many bytes are read in a thread."""
MOST_BYTES = 16 << 20
"""Bytes of memory that the objects of one body may take."""
MOST_QUOTES = 1 << 18
_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)', re.DOTALL)
_NUMBER, _TEXT, _CONTAINER = 36, 60, 100
"""Bytes that a number in a list takes at most, a short string, a small list or object."""


async def body_of(http: Request, limit: int) -> bytes:
    """The body. Raises TooBig, as soon as it is known to be, and Refusal where there is no memory for it."""
    told = http.headers.get("content-length", "0")
    why = f"the body has more than {limit} bytes"
    if told.isdigit() and int(told[:19]) > limit:
        raise TooBig("", why)
    body = bytearray()
    async for part in http.stream():
        body += part
        if len(body) > limit:
            raise TooBig("", why)
        if len(body) > ASIDE_BYTES:
            http.state.connection.hold(2 * len(body))
    return bytes(body)


async def read_body(http: Request, state: ServerState, read: Callable[[Any], T]) -> T:
    """Return the result of ``read`` on a body's JSON. Raises BadField, or Refusal where there is no memory for it."""
    body = await body_of(http, state.max_body_bytes)
    if len(body) < ASIDE_BYTES:
        return read(parse(body))
    async with state.reading:
        if await http.is_disconnected():
            raise ClientGone
        return await asyncio.to_thread(lambda: read(_parse_large(body)))


def _parse_large(body: bytes) -> Any:
    if not fits(body):
        raise BadField(
            "", f"the body's lists and objects would take more than {MOST_BYTES >> 20} MiB; send less at once"
        )
    return parse(body)


def fits(body: bytes) -> bool:
    """Return True if the objects of this JSON take no more than :data:`MOST_BYTES`, and its strings themselves."""
    quotes = body.count(b'"') - body.count(b'\\"')
    if quotes > MOST_QUOTES:
        return False
    bare = _STRING.sub(b"", body)
    containers = bare.count(b"[") + bare.count(b"{")
    return _NUMBER * bare.count(b",") + _TEXT * quotes // 2 + _CONTAINER * containers <= MOST_BYTES
