"""What was started ends with the process that started it, however that ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdebug.workers.lifeline import Lifeline
from specdebug.workers.reaper import KEY_VARIABLE


@pytest.fixture
def alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A FIFO's end to read from: reading blocks for as long as anybody holds the other."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("alive")
    reader = os.open("alive", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    yield reader
    os.close(reader)


def leader(env: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process group that is known to live."""
    process = subprocess.Popen(
        ["bash", "-c", "exec 9>alive; echo x; sleep 1000 & wait"],
        env=env,
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.read(2)
    process.stdout.close()
    return process


PARENT = """
import os, signal, subprocess
from specdebug.workers.lifeline import lifeline
alive = os.open("alive", os.O_WRONLY)
with lifeline.starting(os.environ) as (key, env):
    command = ["bash", "-c", "sleep 1000 & wait"]
    process = subprocess.Popen(command, env=env, start_new_session=True, pass_fds=[alive])
KNOWN
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("known", ["lifeline.runs(key, process.pid)", ""])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what has just been forked")
def test_a_group_ends_with_the_process_that_is_killed_even_amid_a_start(known: str, alive: int) -> None:
    parent = subprocess.run([sys.executable, "-c", PARENT.replace("KNOWN", known)], check=False)
    assert parent.returncode == -signal.SIGKILL
    assert os.read(alive, 1) == b""


def test_closing_ends_what_runs_and_leaves_alone_what_has_ended(alive: int) -> None:
    line = Lifeline()
    spared = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with line.starting(os.environ) as (other, _env):
        line.runs(other, spared.pid)
    line.ended(other)
    with line.starting(os.environ) as (key, env):
        process = leader(env)
    line.runs(key, process.pid)
    line.close()
    assert process.wait() == -signal.SIGKILL
    assert os.read(alive, 1) == b""
    assert spared.poll() is None
    spared.kill()
    spared.wait()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_reaper_that_is_lost_is_replaced_by_one_that_knows_as_much(number: signal.Signals, alive: int) -> None:
    line = Lifeline()
    with line.starting(os.environ) as (key, env):
        process = leader(env)
    line.runs(key, process.pid)
    first = line._reaper
    assert first is not None
    os.kill(first.pid, number)
    if number == signal.SIGKILL:
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    while line._reaper is first:  # a stopped one is noticed once the pipe is full
        line.ended(line.begin({})[0])
    line.close()
    assert process.wait() == -signal.SIGKILL
    assert os.read(alive, 1) == b""


def test_a_start_that_fails_is_forgotten() -> None:
    line = Lifeline()
    seen: list[dict[str, str]] = []

    def start() -> None:
        with line.starting({}) as (_key, env):
            seen.append(env)
            subprocess.Popen(["./missing"], env=env)

    with pytest.raises(FileNotFoundError):
        start()
    assert list(seen[0]) == [KEY_VARIABLE]
    assert not line._lines
    line.close()


def test_a_reaper_that_cannot_be_had_is_the_start_s_error(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Lifeline()

    def refuse(*words: object, **options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("specdebug.workers.lifeline.subprocess.Popen", refuse)
    with pytest.raises(BlockingIOError):
        line.begin({})
    assert not line._lines
    line.close()
