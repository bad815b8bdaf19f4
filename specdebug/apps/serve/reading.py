"""Bodies of requests: taken in no further than there is memory for, and measured before they are made into objects.

JSON grows as it is read: three bytes of it can become a list of a hundred. So it is measured as it comes in, and one
that would grow too far is refused before the rest of it is here. Large bodies are read one at a time, in a thread, so
that others are served meanwhile.
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
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"|(")(?:[^"\\]++|\\.)*+(\\?)\Z', re.DOTALL)
"""A string, or the beginning of one: its quote, and a backslash whose character is yet to come."""
_NUMBER, _TEXT, _CONTAINER = 36, 60, 100
"""Bytes that a number in a list takes at most, a short string, a small list or object."""


class Growth:
    """The memory that the objects of a JSON text take, in bytes, as far as it has come in; its strings themselves
    count for nothing, as they are no larger than the text."""

    def __init__(self) -> None:
        self.bytes = 0
        self._open = b""

    def take(self, part: bytes) -> None:
        """Count what comes next."""
        bare, strings = _STRING.subn(rb"\1\2", self._open + part)
        bare, quote, escape = bare.partition(b'"')
        self._open = quote + escape
        containers = bare.count(b"[") + bare.count(b"{")
        self.bytes += _NUMBER * bare.count(b",") + _TEXT * (strings - len(quote)) + _CONTAINER * containers


async def body_of(http: Request, limit: int) -> bytearray:
    """The body. Raises BadField as soon as it is known to be too large, or that its objects would be, and Refusal where
    there is no memory for it."""
    told = http.headers.get("content-length", "0")
    why = f"the body has more than {limit} bytes"
    if told.isdigit() and int(told[:19]) > limit:
        raise TooBig("", why)
    body, growth = bytearray(), Growth()
    async for part in http.stream():
        body += part
        if len(body) > limit:
            raise TooBig("", why)
        growth.take(part)
        if growth.bytes > MOST_BYTES:
            most = f"{MOST_BYTES >> 20} MiB"
            raise BadField("", f"the body's lists and objects would take more than {most}; send less at once")
        if len(body) > ASIDE_BYTES:
            http.state.connection.hold(2 * len(body))
    return body


async def read_body(http: Request, state: ServerState, read: Callable[[Any], T]) -> T:
    """Return the result of ``read`` on a body's JSON. Raises BadField, or Refusal where there is no memory for it."""
    body = await body_of(http, state.max_body_bytes)
    if len(body) < ASIDE_BYTES:
        return read(parse(body))
    async with state.reading:
        if await http.is_disconnected():
            raise ClientGone
        return await asyncio.to_thread(lambda: read(parse(body)))
