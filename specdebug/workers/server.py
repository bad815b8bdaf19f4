"""The parent's side of one fork server: start it, ask it, give it up, end it.

**A stopped server.** The fork server signals workers, for only who reaps one knows that its number is still its own.
Where its help is due it is asked if it is there; if it does not answer it is killed from here with its process group,
which is all its workers. Those past their time have hung; the others say why they ended.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from collections.abc import Sequence
from typing import Any

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.workers.child import OwnChild, cannot_start
from specdebug.workers.machine_failure import MachineFailure, failure_in_log
from specdebug.workers.wire import ASK, PREPARE, LineReader, send

ANSWER_S = 5.0
"""Seconds that a fork server may take to answer; it does nothing that takes longer than a fork."""
BUSY_S = 600.0
"""The same while it imports its libraries or prepares something."""
_LOOK_S = 0.25
"""Seconds that one look at the silent server counts for at most, and that one wait for its end takes."""

_BOOT = "from specdebug.workers.forkserver import main; sys.exit(main(sys.argv[1:]))"
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


class Server(OwnChild):
    """A fork server that was started; it loads its modules while the caller goes on. End it with :meth:`close`.

    Its group holds all its workers. Its channel becomes readable when it has said something, or is gone.

    Attributes:
        ready: it has loaded its modules, and forks workers.
        given_up: why it was killed for not answering, if it was.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        """Raises WorkerStartError, or MachineFailed when the system has no process or no descriptor left to give."""
        super().__init__(_BOOT, *preload, **_ONE_THREAD)
        self.ready = False
        self.given_up: str | None = None
        self._replies = LineReader()
        self._silence = _Silence()
        self.channel.settimeout(BUSY_S)  # a stopped server takes in no more than the socket holds

    def prepare(self, target: str, argument: Any) -> None:
        """Have it call a ``module:function`` with its argument before it forks workers for jobs sent later."""
        self._silence.tasks += 1
        self.send(PREPARE, {"target": target, "payload": pickle.dumps(argument)})

    def send(self, tag: bytes, payload: Any, fds: tuple[int, ...] = ()) -> None:
        """Tell it something; one that has died shows as a closed socket in the next :meth:`hear`."""
        try:
            send(self.channel, tag, payload, fds)
        except TimeoutError:
            self._give_up(BUSY_S)
        except (BrokenPipeError, ConnectionResetError):
            return

    def hear(self) -> list[dict[str, Any]] | None:
        """Return what it has said; None when it is gone."""
        try:
            data = self.channel.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        replies = list(self._replies.feed(data))
        for reply in replies:
            self._silence.broken("here" in reply)
            if "ready" in reply:
                self.ready = True
            if "ready" in reply or "prepared" in reply:
                self._silence.tasks -= 1
        return replies

    def read_log(self) -> bool:
        """Take in what it has printed; return False once nothing more can come."""
        data = os.read(self.log.fileno(), 1 << 16)
        self.take_log(data)
        return bool(data)

    def mind(self) -> None:
        """Call this again and again while it has something to do: one that is silent for too long is killed."""
        if self._silence.should_ask():
            self.send(ASK, None)
        elif self.given_up is None and (limit_s := self._silence.limit_passed()):
            self._give_up(limit_s)

    def _give_up(self, limit_s: float) -> None:
        """Kill it and all its workers; a listener finds its socket closed."""
        why = "it and its workers were killed; did something stop it?"
        self.given_up = f"the fork server did not answer for {limit_s:g} s: {why}"
        self.kill_all()

    def gone(self) -> int:
        """Return its exit status, once it is gone and its last words are read."""
        status = self.wait()
        with contextlib.suppress(OSError):
            self.take_log(self.log.read())
        return status

    def last_words(self, status: int) -> SpecDebugError:
        """Return the error for one that was gone before it was ready."""
        log = self.said.strip()
        last = self.given_up or (log.splitlines()[-1] if log else f"exit status {status}")
        killed = status == -signal.SIGKILL and self.given_up is None
        failure = MachineFailure("killed", "the fork server got SIGKILL") if killed else failure_in_log(log)
        return cannot_start(f"the worker process could not start: {last}", failure)

    def close(self) -> None:
        """End it, and with it every worker, and wait until it is gone."""
        self.channel.close()
        self.log.close()
        # One that is ready sees its socket closed and ends its workers; one still importing has none.
        if not self.ready:
            self.kill()
        patience, looks = interrupts.Patience(), int(ANSWER_S / _LOOK_S)
        while self.ended_within(_LOOK_S) is None:
            looks -= 1
            if patience.over or looks < 0:
                self.kill_all()
        self.end()


class _Silence:
    """Measures how long the fork server has owed an answer, in time that this process has spent looking: should both
    have stood still together (a laptop asleep, a container frozen), none is to blame."""

    def __init__(self) -> None:
        self._looked_at = time.monotonic()
        self._owed_s = 0.0
        self._asked = False
        self.tasks = 1  # imports and preparations that it has not reported the end of

    def should_ask(self) -> bool:
        """Look once more, while an answer matters. Return True if the server is to be asked now if it is there."""
        now = time.monotonic()
        self._owed_s += min(now - self._looked_at, _LOOK_S) if self._asked else 0.0
        self._looked_at = now
        asked, self._asked = self._asked, True
        return not asked

    def broken(self, alive: bool) -> None:
        """Take in that it has said something; ``alive`` if that was its answer."""
        self._owed_s = 0.0
        if alive:
            self._asked = False

    def limit_passed(self) -> float | None:
        """Return how long it may take now, if it has taken longer."""
        limit_s = BUSY_S if self.tasks else ANSWER_S
        return limit_s if self._owed_s > limit_s else None
