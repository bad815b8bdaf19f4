"""Nests (:class:`home.Nest`) as the fork server sees them: it forks them, sends them jobs and passes on what they say.

Nothing here waits: a nest that gets ready, hangs or dies holds up no job but its own, and those a fork of the server
then takes on. Between the two are the messages that pass between the pool and the server.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from specdebug.workers.wire import JOB, SIGNAL, LineReader, send

READY_S = 600.0  # seconds that a nest may take to get ready
ANSWER_S = 10.0  # seconds that one that is ready may take to start a job, or to see the end of one that was killed
_SEND_S = 1.0  # seconds that it may take to take in what it is sent, should it have been stopped
_LOOK_S = 1.0


@dataclass
class _Live:
    """A nest that has not been reaped. ``waiting``: jobs that it has not started, each with its descriptors;
    ``running``: those that it has, and ``killed`` those of them. ``since``: when it has owed something, as of late."""

    pid: int
    key: str
    kept: int
    channel: socket.socket
    ready: bool = False
    waiting: dict[str, tuple[dict[str, Any], list[int]]] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    killed: set[str] = field(default_factory=set)
    lines: LineReader = field(default_factory=LineReader)
    since: float = 0.0

    @property
    def owes(self) -> bool:
        """Return True if something is to be heard of it soon."""
        return bool(self.waiting or self.killed)

    @property
    def patience_s(self) -> float:
        """Return how many seconds it may be silent while it owes something: getting ready takes long, its own or that
        of a nest of its own."""
        deeper = any(job["nests"] for job, _ in self.waiting.values())
        return READY_S if deeper or not self.ready else ANSWER_S

    def begin_to_owe(self) -> None:
        """Start its clock, unless it is running."""
        if not self.owes:
            self.since = time.monotonic()

    @property
    def idle(self) -> bool:
        """Return True if it is ready and has no job."""
        return self.ready and not self.waiting and not self.running


class Nests:
    """The nests of a fork server.

    Args:
        fork: forks a worker of the server for a job, given its descriptors.
        live: is a nest, in the process that was forked to be one: its socket, what the job says of it.
        reply: tells the pool.
    """

    def __init__(
        self,
        fork: Callable[[dict[str, Any], list[int]], None],
        live: Callable[[socket.socket, Mapping[str, Any]], NoReturn],
        reply: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._fork, self._live, self._reply = fork, live, reply
        self._by_pid: dict[int, _Live] = {}
        self._by_key: dict[str, _Live] = {}  # those that take jobs, the least lately used first
        self._spoilt: set[str] = set()

    @property
    def channels(self) -> list[socket.socket]:
        """The sockets to listen at."""
        return [nest.channel for nest in self._by_pid.values()]

    @property
    def patience_s(self) -> float | None:
        """Seconds until :meth:`mind` is to be called at the latest; None where no nest owes anything."""
        return _LOOK_S if any(nest.owes for nest in self._by_pid.values()) else None

    def take(self, job: dict[str, Any], fds: list[int]) -> bool:
        """Have a job run in its nest; return False where it has none. Raises OSError when the system has no process or
        no descriptor left for a nest."""
        nests = [each for each in job.pop("nests", ()) if each["key"] not in self._spoilt]
        if not nests:
            return False
        asked, *job["nests"] = nests
        nest = self._by_key.pop(asked["key"], None) or self._made(asked, fds)
        self._by_key[nest.key] = nest
        nest.begin_to_owe()
        nest.waiting[job["job"]] = (job, fds)
        if nest.ready:
            self._send(nest, JOB, job, fds)
        return True

    def signal(self, job: str, number: int) -> None:
        """Send a signal to a job's worker, if it is a nest's; one that has none yet ends as by that signal."""
        for nest in self._by_pid.values():
            if job in nest.running or (nest.ready and job in nest.waiting):
                if number == signal.SIGKILL:
                    nest.begin_to_owe()
                    nest.killed.add(job)
                self._send(nest, SIGNAL, {"job": job, "signal": number})
            elif job in nest.waiting:
                self._close_pipes(nest, job)
                self._reply({"ended": job, "status": -number})

    def hear(self, readable: list[Any]) -> None:
        """Take in what nests have said, whose channels can be read."""
        for nest in list(self._by_pid.values()):
            if nest.channel in readable and not self._read(nest):
                self._kill(nest)  # it has closed its socket, and is about to end

    def mind(self) -> None:
        """End nests that owe something for too long."""
        now = time.monotonic()
        for nest in self._by_pid.values():
            if nest.owes and now - nest.since > nest.patience_s:
                self._kill(nest)

    def reap(self) -> None:
        """Take notice of nests that have ended. Their workers have ended with them; jobs not started begin."""
        for pid in list(self._by_pid):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._bury(self._by_pid.pop(pid))

    def forget(self) -> None:
        """Close, in a process that was forked, what is the server's."""
        for nest in self._by_pid.values():
            nest.channel.close()
            for name in list(nest.waiting):
                self._close_pipes(nest, name)

    def close(self) -> None:
        """End every nest, and with it its workers."""
        for nest in self._by_pid.values():
            self._kill(nest)
        for pid in self._by_pid:
            os.waitpid(pid, 0)

    def _made(self, asked: Mapping[str, Any], fds: list[int]) -> _Live:
        ours, theirs = socket.socketpair()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            self.forget()
            ours.close()
            for fd in fds:
                os.close(fd)
            self._live(theirs, asked)
        theirs.close()
        ours.settimeout(_SEND_S)
        self._by_pid[pid] = _Live(pid, asked["key"], asked["kept"], ours)
        return self._by_pid[pid]

    def _bury(self, nest: _Live) -> None:
        nest.channel.setblocking(False)
        while self._read(nest):
            pass
        nest.channel.close()
        if self._by_key.get(nest.key) is nest:
            del self._by_key[nest.key]
        if not nest.ready:
            self._spoilt.add(nest.key)
        for name in nest.running:
            self._reply({"ended": name, "status": -int(signal.SIGKILL)})
        for job, fds in nest.waiting.values():
            self._fork(job, fds)

    def _send(self, nest: _Live, tag: bytes, payload: Any, fds: list[int] | None = None) -> None:
        """Tell it something; one that is gone shows as a closed socket."""
        try:
            send(nest.channel, tag, payload, tuple(fds or ()))
        except TimeoutError:
            self._kill(nest)
        except OSError:
            return

    def _read(self, nest: _Live) -> bool:
        """Take in what it has said; return False when that is nothing."""
        data = b""
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            data = nest.channel.recv(1 << 16)
        for reply in nest.lines.feed(data):
            nest.since = time.monotonic()
            if "ready" in reply:
                nest.ready = True
                for job, fds in nest.waiting.values():
                    self._send(nest, JOB, job, fds)
                continue
            job = reply.get("started") or reply.get("refused") or reply["ended"]
            if job in nest.waiting:
                self._close_pipes(nest, job)
            if "started" in reply:
                nest.running.add(job)
            else:
                nest.running.discard(job)
                nest.killed.discard(job)
            self._reply(reply)
        self._drop_idle()
        return bool(data)

    def _drop_idle(self) -> None:
        idle = [nest for nest in self._by_key.values() if nest.idle]
        for nest in idle[: -max((nest.kept for nest in idle), default=1)]:
            del self._by_key[nest.key]
            self._kill(nest)

    def _kill(self, nest: _Live) -> None:
        if nest.pid in self._by_pid:  # ours until reaped, so the pid cannot be another's
            os.kill(nest.pid, signal.SIGKILL)

    def _close_pipes(self, nest: _Live, job: str) -> None:
        """Close a job's pipes, which its worker has, or which it will have none for."""
        _, fds = nest.waiting.pop(job)
        for fd in fds:
            os.close(fd)
