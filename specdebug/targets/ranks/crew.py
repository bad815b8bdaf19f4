"""The other ranks of a session: processes that are forked from the worker before its engine is built, one a rank, each
with a channel to it. None outlives the worker, and one that dies or stands still is named with what it waits in."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

from specdebug.async_probe import parse_message
from specdebug.targets.inside.failure import failure_of
from specdebug.targets.ranks.collectives import Board
from specdebug.targets.requests import SessionFailed
from specdebug.workers.forkserver import be_ours

PATIENCE_S, PATIENCE = 20.0, 1 / 30
"""Ranks that are built count as hanging after so many seconds without any rank's entering a collective, or answering,
or after that part of a run's time limit, if that is longer."""
_GRACE_S = 2.0
"""Seconds to wait for other ranks' own words once one rank has failed: a rank that dies shows first in those that it
leaves waiting."""
_LOOK_S = 0.05


@dataclass
class Rank:
    """Another rank's process."""

    number: int
    pid: int
    channel: Connection
    status: int | None = None

    @property
    def gone(self) -> bool:
        """Return True if it has ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None


@dataclass(frozen=True)
class Failure:
    """A rank's words on its own failure, as ``requests.SessionFailed`` has it."""

    text: str
    site: str
    kind: str


class RankFailed(SessionFailed):
    """A rank has failed. ``data``: its number, and what each rank was in."""

    def __init__(self, message: str, site: str, kind: str, rank: int, ranks: Sequence[str]) -> None:
        super().__init__(message, site, kind, {"rank": rank, "ranks": list(ranks)})


class Crew:
    """The ranks 1 and up of ``board``; this process is rank 0."""

    def __init__(self, board: Board, main: Callable[[int, Connection], None], limit_s: float = 0.0) -> None:
        """Fork them: each calls ``main`` with its number and its end of the channel, and ends when that returns.
        ``limit_s``: the run's time limit."""
        self.board, self._patience_s = board, max(PATIENCE_S, limit_s * PATIENCE)
        self._built = False
        self._ranks: list[Rank] = []
        for number in range(1, board.world):
            self._fork(number, main)
        self._still()

    def built(self) -> None:
        """From now on ranks that stand still count as hanging: one that builds its engine may be long in between."""
        self._built = True
        self._still()

    @property
    def numbers(self) -> list[int]:
        """The ranks, without this process."""
        return [each.number for each in self._ranks]

    def send(self, number: int, message: Any) -> None:
        """Tell a rank something; one that is gone shows when it is waited for."""
        with contextlib.suppress(OSError):
            tell(self._ranks[number - 1].channel, message)

    def receive(self, among: Sequence[int] | None = None) -> dict[int, Any]:
        """One message of each rank, or of those ``among`` them. Raises RankFailed for one that says that it has failed,
        died, or hangs."""
        messages: dict[int, Any] = {}
        asked = [each for each in self._ranks if among is None or each.number in among]
        while len(messages) < len(asked):
            silent = [each for each in asked if each.number not in messages]
            for channel in wait([each.channel for each in silent], _LOOK_S):
                rank = next(each for each in silent if each.channel is channel)
                if (message := self._heard(rank)) is not None:
                    messages[rank.number] = message
                    self._still()
            self.watch([each.number for each in silent if each.number not in messages])
        return messages

    def watch(self, among: Sequence[int] | None = None) -> None:
        """Raise RankFailed if a rank has ended, or if all are built and have stood still for too long. ``among``: ranks
        that owe an answer; by default this process owes one, too."""
        for rank in self._ranks:
            if rank.gone:
                raise self._died(rank)
        now = self.board.entered()
        if now != self._entered:
            self._still()
        elif self._built and time.monotonic() - self._since > self._patience_s:
            raise self._hangs(among)

    def blame(self, error: BaseException) -> BaseException:
        """The failure that an error of this process came of: another rank's, if one shows within a moment."""
        if isinstance(error, RankFailed):
            return error
        ends = time.monotonic() + _GRACE_S
        while time.monotonic() < ends:
            for rank in self._ranks:
                if rank.gone:
                    return self._died(rank)
                try:
                    if rank.channel.poll():
                        self._heard(rank)
                except RankFailed as failed:
                    return failed
            time.sleep(_LOOK_S)
        return error

    def end(self) -> None:
        """Kill those that are left, and wait for them."""
        for rank in self._ranks:
            if not rank.gone:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)
                os.waitpid(rank.pid, 0)
                rank.status = -int(signal.SIGKILL)

    def states(self) -> list[str]:
        """The last collective of each rank, in words."""
        return [f"rank {number} {self.board.read(number)}" for number in range(self.board.world)]

    def _fork(self, number: int, main: Callable[[int, Connection], None]) -> None:
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for each in self._ranks:
                each.channel.close()
            _live(number, theirs, main)
        theirs.close()
        self._ranks.append(Rank(number, pid, ours))

    def _heard(self, rank: Rank) -> Any:
        """A rank's message; None where it has ended instead. Raises RankFailed."""
        try:
            message = hear(rank.channel)
        except (EOFError, ConnectionResetError):
            if rank.gone or self._ends(rank):
                raise self._died(rank) from None
            return None
        if isinstance(message, Failure):
            raise self._failed(rank, message)
        return message

    def _failed(self, rank: Rank, said: Failure) -> RankFailed:
        return RankFailed(f"rank {rank.number}: {said.text}", said.site, said.kind, rank.number, self.states())

    def _ends(self, rank: Rank) -> bool:
        ends = time.monotonic() + _GRACE_S
        while not rank.gone and time.monotonic() < ends:
            time.sleep(_LOOK_S)
        return rank.gone

    def _died(self, rank: Rank) -> RankFailed:
        with contextlib.suppress(OSError, EOFError):
            while rank.channel.poll():  # its own words, should it have had any
                if isinstance(said := hear(rank.channel), Failure):
                    return self._failed(rank, said)
        assert rank.status is not None
        how = signal.Signals(-rank.status).name if rank.status < 0 else f"exit status {rank.status}"
        kind = f"crash:{how.replace(' ', '-')}"
        text = f"rank {rank.number} has died ({how}); {self._told(self._parted())}"
        return RankFailed(text, f"rank{rank.number}", kind, rank.number, self.states())

    def _hangs(self, among: Sequence[int] | None) -> RankFailed:
        """Of ranks that stand still, the first that parts from one before it; else the one that the others wait for: it
        waits in no collective, or has entered fewer."""
        states = {number: self.board.read(number) for number in range(self.board.world)}
        parted = self._parted()
        idle = [number for number, state in states.items() if not state.waits and (among is None or number in among)]
        fewest = min(states, key=lambda each: (states[each].entered, -each))
        number = parted[0] if parted else idle[0] if idle else fewest
        others = sorted({str(state.last.op) for each, state in states.items() if each != number and state.last})
        text = f"no rank has come further for {self._patience_s:g} s; {self._told(parted)}"
        site = f"rank{number}.{others[0]}" if others else f"rank{number}"
        return RankFailed(text, site, "hang", number, self.states())

    def _parted(self) -> tuple[int, str] | None:
        """The first rank that has entered another collective than one before it, and in words which."""
        states = [self.board.read(number) for number in range(self.board.world)]
        for number, state in enumerate(states):
            for first in range(number):
                if (found := states[first].parts_from(state)) is not None:
                    return number, f"rank {number} parts from rank {first}, which enters {found[0]}, and it {found[1]}"
        return None

    def _told(self, parted: tuple[int, str] | None) -> str:
        return "; ".join([*self.states(), *([parted[1]] if parted else [])])

    def _still(self) -> None:
        self._entered, self._since = self.board.entered(), time.monotonic()


def _live(number: int, channel: Connection, main: Callable[[int, Connection], None]) -> NoReturn:
    """Be a rank until its work is over, and never what this process was forked from."""
    status = 1
    try:
        be_ours()
        main(number, channel)
        status = 0  # or the worker is gone
    except BaseException as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):
            tell(channel, _words_of(error))
            channel.close()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _words_of(error: BaseException) -> Failure:
    failed = error if isinstance(error, SessionFailed) else failure_of(error)
    probe = parse_message(str(error))
    told = probe if probe is not None else failed if isinstance(failed, SessionFailed) else None
    return Failure(str(failed), *(("engine", "error") if told is None else (told.site, told.kind)))


class WatchedThread:
    """Makes calls in a thread of its own, one at a time, and calls ``watch`` again and again meanwhile."""

    def __init__(self, watch: Callable[[], None]) -> None:
        self._watch = watch
        self._calls: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        threading.Thread(target=self._run, name="rank", daemon=True).start()

    def call(self, function: Callable[[], Any]) -> Any:
        """What a function returns. Raises what it raises, and what ``watch`` raises: that one still runs then, and no
        other can be called."""
        self._calls.put(function)
        while True:
            with contextlib.suppress(Empty):
                answer, error = self._answers.get(timeout=_LOOK_S)
                break
            self._watch()
        if error is not None:
            raise error
        return answer

    def _run(self) -> None:
        while True:
            function = self._calls.get()
            try:
                self._answers.put((function(), None))
            except BaseException as error:
                self._answers.put((None, error))


def messages(channel: Connection) -> Iterator[Any]:
    """The messages of a channel until its other end closes."""
    with contextlib.suppress(EOFError):
        while True:
            yield hear(channel)


def tell(channel: Connection, message: Any) -> None:
    """Send a message; tensors travel by value. Raises OSError."""
    channel.send_bytes(pickle.dumps(message))


def hear(channel: Connection) -> Any:
    """The next message. Raises EOFError, OSError."""
    return pickle.loads(channel.recv_bytes())
