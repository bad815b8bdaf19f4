"""A command of an installation is followed to its end, and ends with us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specdebug.targets.installs import running
from specdebug.targets.installs.running import ask, run_logged
from specdebug.targets.installs.store import StoreError, held
from specdebug.workers.system import is_gone


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-c", code, *arguments]


def test_a_log_that_cannot_be_written_costs_no_word(tmp_path: Path) -> None:
    ended = run_logged(python("print('x' * 90_000); print('last')"), tmp_path / "none" / "log")
    assert ended.tail.endswith("xxx\nlast\n")
    assert len(ended.tail) <= running._TAIL_BYTES


def test_a_command_that_cannot_be_run_and_one_that_does_not_end(tmp_path: Path) -> None:
    for run in (lambda words: run_logged(words, tmp_path / "log"), lambda words: ask(words, 60.0)):
        with pytest.raises(StoreError, match="/nowhere/python does not run: No such file"):
            run(["/nowhere/python"])
    with pytest.raises(StoreError, match="did not answer within 0 s"):
        ask(python("import time; time.sleep(600)"), 0.0)


SLEEPS = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"


def test_a_signal_ends_the_command_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"

    def check() -> None:
        if log.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(running.interrupts, "check", check)
    with pytest.raises(KeyboardInterrupt):
        run_logged(python(SLEEPS), log)
    assert is_gone(int(log.read_text()))


KILLED = f"""
import os, signal, sys
from pathlib import Path
from specdebug.targets.installs import running
from specdebug.targets.installs.store import StoreError, held
log = Path(sys.argv[1]) / "log"
running.interrupts.check = lambda: log.exists() and os.kill(os.getpid(), signal.SIGKILL)
with held(Path(sys.argv[1])):
    running.run_logged([sys.executable, "-I", "-c", {SLEEPS!r}], log)
"""


def test_a_command_of_a_killed_process_is_gone_before_the_next_installs(tmp_path: Path) -> None:
    assert subprocess.run(python(KILLED, str(tmp_path)), check=False).returncode == -9
    with held(tmp_path):
        assert is_gone(int((tmp_path / "log").read_text()))
