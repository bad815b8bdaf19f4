"""Run a command on this terminal. It is imported alone for ``specdebug run -- CMD``, whose start must cost little."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specdebug.base.errors import SpecDebugError
from specdebug.workers.machine_failure import MachineFailed, machine_failure


def run_here(words: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command with our terminal, pipes and process group to its end; return its exit status, 128 and the number
    for a signal. Raises SpecDebugError where it cannot be started."""
    require_program(words[0], Path.cwd())
    with _signals() as started:
        try:
            process = subprocess.Popen(words, env=env)
        except OSError as error:
            raise cannot_run(words[0], error) from None
        started.append(process)
        status = process.wait()
    return 128 - status if status < 0 else status


@contextmanager
def _signals() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Hand on the signals that would end us, but a terminal's Ctrl-C, which the command has got itself."""
    started: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, _: Any) -> None:
        for process in started if number != signal.SIGINT else ():
            process.send_signal(number)

    before = {each: signal.signal(each, hand_on) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield started
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def require_program(program: str, cwd: Path) -> None:
    """Raise SpecDebugError unless ``program`` names something that can be run from ``cwd``."""
    if os.sep not in program:
        if shutil.which(program) is None:
            here = f"; to run the file in this folder write ./{program}" if (cwd / program).is_file() else ""
            raise SpecDebugError(f"there is no command {program}{here}")
        return
    path = cwd / program
    if not path.exists():
        raise SpecDebugError(f"there is no command {program}: no such file")
    if not path.is_file() or not os.access(path, os.X_OK):
        hint = f"; chmod +x {program}" if path.is_file() else ""
        raise SpecDebugError(f"{program} cannot be run: it is not an executable file{hint}")


def cannot_run(program: str, error: OSError) -> SpecDebugError:
    """The error for a command that does not start: the machine's if it has no process to give."""
    failure = machine_failure(error)
    if failure is not None:
        return MachineFailed(failure)
    hint = "; a script needs a first line such as #!/bin/bash" if error.strerror == "Exec format error" else ""
    return SpecDebugError(f"{program} cannot be run: {error.strerror}{hint}")
