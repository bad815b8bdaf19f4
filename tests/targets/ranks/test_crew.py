"""The other ranks' processes: what they say, how they fail, and that none is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import cast

import pytest
import torch

from specdebug.targets.ranks.collectives import Board, Collective, State
from specdebug.targets.ranks.crew import PATIENCE, Crew, RankFailed, WatchedThread, messages, tell
from specdebug.targets.requests import SessionFailed

ENTERED = Collective("allreduce", "tp", 1, "float32", (2,), "m.py:1 f")
PATIENCE_S = 60.0


@contextmanager
def crew_of(main: Callable[[Board, int, Connection], None], world: int = 3) -> Iterator[Crew]:
    board = Board(world)
    crew = Crew(board, lambda number, channel: main(board, number, channel), PATIENCE_S / PATIENCE)
    crew.built()
    try:
        yield crew
    finally:
        crew.end()


def echoes(board: Board, number: int, channel: Connection) -> None:
    for message in messages(channel):
        tell(channel, (number, message))


def test_each_rank_answers_what_it_was_told() -> None:
    with crew_of(echoes) as crew:
        assert crew.numbers == [1, 2]
        for number in crew.numbers:
            crew.send(number, torch.full((2,), number))
        heard = crew.receive()
        assert [(number, *said[:1], said[1].tolist()) for number, said in sorted(heard.items())] == [
            (1, 1, [1, 1]),
            (2, 2, [2, 2]),
        ]
        crew.send(1, "again")
        crew.send(2, "again")
        assert crew.receive() == {1: (1, "again"), 2: (2, "again")}


def failing(board: Board, number: int, channel: Connection) -> None:
    if number == 2:
        raise SessionFailed("it is full", "scheduler.pool", "oob")
    echoes(board, number, channel)


def test_a_rank_s_failure_is_told_in_its_words() -> None:
    with crew_of(failing) as crew:
        crew.send(1, "anything")
        with pytest.raises(RankFailed, match="rank 2: it is full") as caught:
            crew.receive()
    assert (caught.value.site, caught.value.kind, caught.value.data["rank"]) == ("scheduler.pool", "oob", 2)


def test_any_other_error_is_an_error_of_the_rank_s_engine() -> None:
    def main(board: Board, number: int, channel: Connection) -> None:
        raise ValueError("no such head")

    with crew_of(main, 2) as crew, pytest.raises(RankFailed, match=r"rank 1: .*no such head") as caught:
        crew.receive()
    assert caught.value.kind == "error"


def dying(board: Board, number: int, channel: Connection) -> None:
    board.write(number, State(1, True, (ENTERED,)))
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    echoes(board, number, channel)


def test_a_rank_that_is_killed_is_named_with_what_each_was_in() -> None:
    with crew_of(dying) as crew, pytest.raises(RankFailed, match=r"rank 1 has died \(SIGKILL\)") as caught:
        crew.receive()
    assert (caught.value.site, caught.value.kind) == ("rank1", "crash:SIGKILL")
    assert "rank 0 has entered no collective" in caught.value.data["ranks"]
    assert f"rank 1 waits in {ENTERED}" in str(caught.value)


def test_a_death_that_shows_in_this_process_first_is_blamed_on_the_rank() -> None:
    with crew_of(dying, 2) as crew:
        blamed = crew.blame(SessionFailed("connection reset by peer", "engine"))
        assert isinstance(blamed, RankFailed)
        assert blamed.data["rank"] == 1


def test_an_error_of_this_process_alone_stays_its_own() -> None:
    error = SessionFailed("mine", "engine")
    with crew_of(echoes, 2) as crew:
        assert crew.blame(error) is error


def failure_once_patience_is_over(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> RankFailed:
    """Of ranks that have said where they are, while this process waits in a collective."""
    crew.receive()
    crew.board.write(0, State(1, True, (ENTERED,)))
    crew.watch(crew.numbers)
    later = time.monotonic() + 1.1 * PATIENCE_S
    with monkeypatch.context() as patched:
        patched.setattr("specdebug.targets.ranks.crew.time.monotonic", lambda: later)
        with pytest.raises(RankFailed) as caught:
            crew.watch(crew.numbers)
    return caught.value


def standing_still(board: Board, number: int, channel: Connection) -> None:
    if number == 1:
        board.write(number, State(1, True, (ENTERED,)))
    tell(channel, "there")
    echoes(board, number, channel)


def test_ranks_that_stand_still_are_a_hang_of_the_one_that_waits_in_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with crew_of(standing_still) as crew:
        failed = failure_once_patience_is_over(crew, monkeypatch)
    assert (failed.kind, failed.site, failed.data["rank"]) == ("hang", "rank2.allreduce", 2)
    assert str(failed).startswith("no rank has come further for 60 s; rank 0 waits in allreduce #1 of float32 2")


def parting(board: Board, number: int, channel: Connection) -> None:
    other = Collective("broadcast", "tp", 1, "float32", (2,), "m.py:2 g")
    board.write(number, State(1, True, (ENTERED if number == 1 else other,)))
    tell(channel, "there")
    echoes(board, number, channel)


def test_a_rank_that_waits_in_another_collective_is_the_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with crew_of(parting) as crew:
        failed = failure_once_patience_is_over(crew, monkeypatch)
    assert "rank 2 parts from rank 0, which enters allreduce" in str(failed)
    assert (failed.site, failed.data["rank"]) == ("rank2.allreduce", 2)


def test_ranks_that_come_further_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.monotonic()]
    with crew_of(echoes, 2) as crew:
        crew.watch()
        monkeypatch.setattr("specdebug.targets.ranks.crew.time.monotonic", lambda: now[0])
        for entered in range(1, 4):
            crew.board.write(1, State(entered, True, (ENTERED,)))
            now[0] += 0.9 * PATIENCE_S
            crew.watch()
        now[0] += 1.1 * PATIENCE_S
        with pytest.raises(RankFailed, match="no rank has come further"):
            crew.watch()
        monkeypatch.undo()


def test_ranks_that_build_do_not_hang_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(2)
    crew = Crew(board, lambda number, channel: echoes(board, number, channel))
    now = time.monotonic()
    with monkeypatch.context() as patched:
        patched.setattr("specdebug.targets.ranks.crew.time.monotonic", lambda: now + 10 * PATIENCE_S)
        crew.watch()
        crew.built()
        crew.watch()
        patched.setattr("specdebug.targets.ranks.crew.time.monotonic", lambda: now + 11 * PATIENCE_S)
        with pytest.raises(RankFailed, match="no rank has come further for 20 s"):
            crew.watch()
    crew.end()


def pids(board: Board, number: int, channel: Connection) -> None:
    tell(channel, os.getpid())
    echoes(board, number, channel)


def test_none_is_left_alive() -> None:
    with crew_of(pids) as crew:
        told = crew.receive()
        os.kill(told[1], signal.SIGSTOP)  # nothing but a kill ends it now
    for pid in told.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_call_in_a_thread_of_its_own_answers_raises_and_is_watched() -> None:
    watched, released = threading.Event(), threading.Event()
    thread = WatchedThread(watched.set)
    assert thread.call(lambda: (threading.current_thread().name, watched.wait(PATIENCE_S))) == ("rank", True)
    with pytest.raises(SessionFailed, match="it is full"):
        thread.call(lambda: failing(Board(3), 2, cast(Connection, None)))

    def parted() -> None:
        raise RankFailed("rank 1 hangs", "rank1", "hang", 1, ())

    blocked = WatchedThread(parted)
    with pytest.raises(RankFailed, match="rank 1 hangs"):
        blocked.call(released.wait)
    released.set()
