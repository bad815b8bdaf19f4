"""The process that keeps servers for a search: who gets which, and that none outlives it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import Pipe

import pytest

from specdebug.targets.launch.keeper import LentServer, ServerKeeper, ServerWish, Shelf, _lend
from specdebug.targets.launch.process import StartFailed
from specdebug.targets.requests import NoServer
from tests.targets.launch.starting import command, lives


@pytest.fixture
def keeper() -> Iterator[ServerKeeper]:
    kept = ServerKeeper()
    yield kept
    kept.close()


def wish(*more: str) -> ServerWish:
    return ServerWish(command(*more), "label", None, "/health", 60.0, (("X-Key", "y"),))


def lent(keeper: ServerKeeper, *more: str) -> LentServer:
    return LentServer(keeper.address, wish(*more), lambda text: None)


def test_a_sound_server_is_lent_again_and_an_unsound_one_is_ended(keeper: ServerKeeper) -> None:
    first = lent(keeper)
    assert first.status() is None
    first.release(True)
    again = lent(keeper)
    assert again.pid == first.pid
    again.release(False)
    other = lent(keeper)
    assert other.pid != first.pid
    assert not lives(first.pid)
    other.release(True)
    os.kill(other.pid, 9)  # while it waits
    first, other = other, lent(keeper)
    assert other.pid != first.pid
    keeper.close()
    assert not lives(other.pid)


def test_the_log_of_a_server_whose_runs_all_passed_goes_with_it(keeper: ServerKeeper) -> None:
    servers = [lent(keeper) for _ in range(4)]
    for server in servers[1:]:
        server.release(True)  # the first of them has to make room
    servers[0].release(False)
    keeper.close()
    assert [os.path.exists(server.log.path) for server in servers] == [True, False, False, False]
    os.unlink(servers[0].log.path)


def test_how_a_start_failed_is_told(keeper: ServerKeeper) -> None:
    with pytest.raises(NoServer, match="ended \\(exit status 2\\) before it was ready"):
        lent(keeper, "--end", "2")
    with pytest.raises(StartFailed) as caught:
        lent(keeper, "--say", "x: fail nan@draft.x", "--end", "1")
    assert caught.value.signature == "nan@draft.x"


def test_a_server_whose_worker_is_gone_without_a_word_is_ended(keeper: ServerKeeper) -> None:
    first = lent(keeper)
    first._talk.close()
    second = lent(keeper)
    assert second.pid != first.pid
    keeper.close()
    assert not lives(first.pid)


def test_a_worker_that_leaves_while_its_server_starts_is_no_error() -> None:
    ours, theirs = Pipe()
    theirs.send(wish())
    theirs.close()
    shelf = Shelf()
    _lend(ours, shelf)  # which cannot tell anybody how the start goes on
    assert shelf.take(wish()) is None
    assert shelf._used == []
