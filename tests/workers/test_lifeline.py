"""What was started ends with the process that started it, however that ended."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdebug.workers import reaper
from specdebug.workers.child import Lifeline


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
from specdebug.workers.child import lifeline
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


HOLDER = """
import fcntl, os, signal
from specdebug.workers.child import lifeline
def begin():
    key, env = lifeline.begin(os.environ)
    lifeline.ended(key)
lock = os.open("lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
ORDER
os.kill(lifeline._reaper.pid, signal.SIGSTOP)
print(lifeline._reaper.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("order", ["lifeline.holds(lock); begin()", "begin(); lifeline.holds(lock)"])
def test_a_lock_that_a_reaper_shares_is_free_only_when_the_reaper_is_gone(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = subprocess.run([sys.executable, "-c", HOLDER.replace("ORDER", order)], stdout=subprocess.PIPE, check=False)
    assert ended.returncode == -signal.SIGKILL
    lock = os.open("lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.kill(int(ended.stdout), signal.SIGCONT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.close(lock)


def test_a_reaper_that_another_takes_the_place_of_ends_nothing(alive: int) -> None:
    line = Lifeline()
    with line.starting(os.environ) as (key, env):
        process = leader(env)
    line.runs(key, process.pid)
    first = line._reaper
    assert first is not None
    line.holds(alive)
    assert first.returncode == 0
    assert line._reaper is not first
    assert process.poll() is None
    line.lets_go(alive)
    line.close()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which processes are zombies")
def test_a_reaper_waits_for_what_still_ends_and_not_for_who_takes_notice_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    assert reaper._lives(process.pid)
    reaper.kill_group(process.pid)
    reaper.wait_for({process.pid})
    assert not reaper._lives(process.pid)  # but it is a zombie, which nobody has waited for
    assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    process.wait()
    assert not reaper._lives(process.pid)


@pytest.mark.parametrize("killed", [1, 3])
def test_a_reaper_that_is_killed_before_it_is_told_anything_is_replaced_but_not_for_ever(
    killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, starts, start = Lifeline(), [], Lifeline._start

    def start_and_kill(self: Lifeline) -> None:
        start(self)
        starts.append(self._reaper)
        if len(starts) <= killed:
            assert self._reaper is not None
            self._reaper.kill()
            os.waitid(os.P_PID, self._reaper.pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(Lifeline, "_start", start_and_kill)
    if killed == 1:
        line.begin({})
        assert starts[-1] is line._reaper
        assert starts[-1].poll() is None
    else:
        with pytest.raises(BrokenPipeError):
            line.begin({})
        assert line._reaper is None
    line.close()
