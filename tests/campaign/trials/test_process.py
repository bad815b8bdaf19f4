"""A command ends with everything it started, however it ends; its output is kept at both ends."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

import pytest

from specdebug.campaign.trials.command import END_BYTES, CommandStopped, Processes


def run(script: str, tmp_path: Path, timeout_s: float | None = None) -> tuple[int, bool, str]:
    ended = Processes().run(["bash", "-c", script], cwd=tmp_path, env=dict(os.environ), timeout_s=timeout_s)
    return ended.status, ended.timed_out, ended.output


def test_status_and_output_of_both_streams(tmp_path: Path) -> None:
    assert run("echo out; echo err >&2; exit 3", tmp_path) == (3, False, "out\nerr\n")
    assert run("kill -SEGV $$", tmp_path)[0] == -11


def test_a_command_that_hangs_is_killed_at_its_deadline_with_its_children(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    status, timed_out, output = run("exec 9>alive; sleep 1000 & echo started; wait", tmp_path, timeout_s=0.3)
    assert (status, timed_out, output) == (-9, True, "started\n")
    assert os.read(reader, 1) == b""  # blocks for as long as anybody holds the other end
    os.close(reader)


def test_what_a_command_leaves_in_the_background_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    assert run("exec 9>alive; sleep 1000 & exit 0", tmp_path)[0] == 0
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_of_a_long_output_the_ends_are_kept(tmp_path: Path) -> None:
    output = run(f"echo first; head -c {3 * END_BYTES} /dev/zero | tr '\\0' x; echo; echo last", tmp_path)[2]
    assert output.startswith("first\nxxx")
    assert output.endswith("xxx\nlast\n")
    assert "\n...\n" in output
    assert len(output) < 2 * END_BYTES + 10


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    assert run(r"printf '\xff\xfe ok'", tmp_path)[2].endswith(" ok")


def test_closing_ends_what_runs_and_starts_no_more(tmp_path: Path) -> None:
    processes = Processes()
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    stopped: list[bool] = []

    def hang() -> None:
        try:
            processes.run(["bash", "-c", "echo x >started; sleep 1000"], cwd=tmp_path, env=dict(os.environ))
        except CommandStopped:
            stopped.append(True)

    thread = threading.Thread(target=hang)
    thread.start()
    fifo.read_text()
    processes.close()
    thread.join()
    assert stopped == [True]
    with pytest.raises(CommandStopped):
        processes.run(["true"], cwd=tmp_path, env=dict(os.environ))


@pytest.mark.parametrize("timeout_s", [1e11, math.inf])
def test_a_deadline_may_be_further_off_than_a_thread_can_wait(
    timeout_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[threading.Timer] = []
    start = threading.Timer.start
    monkeypatch.setattr(threading.Timer, "start", lambda timer: (timers.append(timer), start(timer)))
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    assert run("exit 0", tmp_path, timeout_s) == (0, False, "")
    timers[0].join()
    assert not failed
