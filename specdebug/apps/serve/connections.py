"""Connections of clients: how long each may take, how many there are, and how much memory is held for all of them.

Uvicorn has no deadline for half a request and none for an answer that its client does not read, so each connection is
looked at once a second. Where connections or memory run out, those are cut that stand still longest: a client that
sends and reads at an ordinary pace is never among them.
"""

from __future__ import annotations

import time
from asyncio import Transport
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from specdebug.apps.serve.fields import ClientGone, Refusal

HEAD_BYTES = 16 << 10  # bytes of a request's head at most
UNSENT_BYTES = 16 << 10  # bytes of an answer that wait in this process before its next piece is asked for
STILL_S = 2.0  # seconds for which an answer must have stood still to be cut for want of memory
_AT_ONCE = 8
"""The part of all connections that is cut, by its inverse, when there are too many: looking through them all for each
new one would take longer than serving it."""

Phase = Literal["idle", "head", "body", "answer"]
"""The states of a connection: it waits for a request, the rest of its head or body, or for its answer to be read."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Seconds for a request's head, for its body, and for which an answer may lie unread; connections, and bytes that
    are held for them, at most."""

    head_s: float = 10.0
    body_s: float = 30.0
    unread_s: float = 120.0
    connections: int = 512
    bytes: int = 12 << 20


class Connections:
    """All connections of one server. ``now`` tells the time in seconds."""

    def __init__(self, limits: ConnectionLimits, now: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.now = now
        self.held = 0
        self._all: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: Connection) -> None:
        """A client has connected; where that makes too many, those are cut that have stood still longest, and of them
        first those that have begun a request and not sent the rest."""
        self._all[connection] = None
        if len(self._all) > self.limits.connections:
            still = [each for each in self._all if each.phase != "answer"]
            still.sort(key=lambda each: (each.phase == "idle", each.since))
            for each in still[: max(self.limits.connections // _AT_ONCE, 1)]:
                each.cut()

    def remove(self, connection: Connection) -> None:
        """A connection is gone."""
        self._all.pop(connection, None)
        self.hold(connection, 0)

    def cut_all(self) -> None:
        """Cut every connection that there is."""
        for each in list(self._all):
            each.cut()

    async def look(self) -> None:
        """Cut what takes too long; once a second."""
        for each in list(self._all):
            if each.is_late(self.limits):
                each.cut()

    def hold(self, connection: Connection, size: int) -> None:
        """Hold so many bytes for a connection from now on, until its answer is sent or it is gone. Raises Refusal
        where there is no room for them, ClientGone for one that is gone."""
        if size and connection not in self._all:
            raise ClientGone
        if size > self.limits.bytes:
            most = f"{size >> 20} MiB, of {self.limits.bytes >> 20} at most"
            raise Refusal(400, f"this would take {most}; ask for fewer prompts, tokens or log probabilities at once")
        while size > connection.held and self.held + size - connection.held > self.limits.bytes:
            if not self._make_room(connection):
                raise Refusal(503, "the server holds as many requests as it has memory for; try again later")
        self.held += size - connection.held
        connection.held = size

    def _make_room(self, wanting: Connection) -> bool:
        """Let go of what is held for nothing, else cut the connection that has stood still longest; False if none."""
        others = [each for each in self._all if each.held and each is not wanting]
        for each in others:
            if each.sent:
                self.hold(each, 0)
                return True
        slow = [each for each in others if each.phase == "body"]
        unread = [each for each in others if each.still_s > STILL_S]
        for each in sorted(slow, key=lambda each: each.since)[:1] or sorted(unread, key=lambda each: -each.still_s)[:1]:
            each.cut()
            return True
        return False


class FrontConfig(uvicorn.Config):
    """Uvicorn's settings, with the connections that :class:`Connection` belongs to."""

    def __init__(self, app: Any, connections: Connections, **options: Any) -> None:
        self.connections = connections
        super().__init__(
            app,
            http=Connection,
            h11_max_incomplete_event_size=HEAD_BYTES,
            callback_notify=connections.look,
            timeout_notify=1,
            limit_concurrency=2 * connections.limits.connections,  # those that are cut leave a moment later
            **options,
        )


class Connection(H11Protocol):
    """One connection. ``held``: bytes of memory that are held for it."""

    def __init__(self, config: FrontConfig, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, {**app_state, "connection": self}, _loop)
        self._table = config.connections
        self._began = self._still = self._table.now()
        self._marks: tuple[Any, ...] = ()
        self._unsent = 0
        self.held = 0

    def hold(self, size: int) -> None:
        """Hold so many bytes for this connection. Raises Refusal where there is no room for them."""
        self._table.hold(self, size)

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._table.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._table.remove(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._still = self._table.now()

    def send_400_response(self, msg: str) -> None:
        """Say that this is no HTTP, where nothing else was said before."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.cut()

    def cut(self) -> None:
        """End it at once, with what it holds."""
        self._table.remove(self)
        self.transport.abort()

    @property
    def phase(self) -> Phase:
        """The state in which it waits."""
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            return "body"
        if state is not h11.IDLE:
            return "answer"
        return "head" if self.cycle is None or self.conn.trailing_data[0] else "idle"

    @property
    def since(self) -> float:
        """The time at which it was first seen to wait for this."""
        marks = (self.phase, self.cycle)
        if marks != self._marks:
            self._marks, self._began = marks, self._table.now()
        return self._began

    @property
    def still_s(self) -> float:
        """Seconds for which its client has read nothing of what waits to be read."""
        unsent, now = self.transport.get_write_buffer_size(), self._table.now()
        if not unsent or not self._unsent or unsent < self._unsent:
            self._still = now
        self._unsent = unsent
        return now - self._still

    @property
    def sent(self) -> bool:
        """Return True if nothing of its last answer is left here."""
        answered = self.cycle is not None and self.cycle.response_complete
        return answered and not self.transport.get_write_buffer_size()

    def is_late(self, limits: ConnectionLimits) -> bool:
        """Return True if it has waited for its client too long."""
        waited = self._table.now() - self.since
        late = {"head": limits.head_s, "body": limits.body_s}.get(self.phase)
        return self.still_s > limits.unread_s or (late is not None and waited > late)
