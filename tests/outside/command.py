"""Run one command line of specdebug, to which something happens at a point that is known.

``python -m tests.outside.command WHAT DONE FOLDER -- ARGV``. WHAT is signals by name, joined by commas, or ``fill``:
the disk of the working directory is filled. DONE is how many workers end well before that; they are stand-ins, and the
next one does it. ``-``: it comes as the command begins, which starts no worker. FOLDER gets a file for every worker,
named by its process id.

The first signal comes from the worker (or from the command under test, if that is what runs), the second while the
command waits for its workers to be gone.
"""

import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.signalled import begin, report

HERE = "tests.outside.command"


def happen(what: str, to: int) -> None:
    """Let it come over the process ``to``."""
    if what == "fill":
        fill(Path.cwd())
    else:
        os.kill(to, signal.Signals[what])


def fill(folder: Path) -> None:
    """Leave no room on the disk of a folder, for not a byte."""
    with open(folder / "filling", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def work(payload: tuple[str, int, str, int], sink: Any) -> None:
    """Be a worker."""
    what, done, folder, parent = payload
    number = len(list(Path(folder).iterdir()))
    (Path(folder) / str(os.getpid())).touch()
    if number == done and what == "fill":
        happen(what, parent)
    elif number >= done and what != "fill":
        begin(sink)
        happen(what, parent)
        while True:
            signal.pause()
    report(sink)


def with_stand_ins(whats: list[str], done: int, folder: str) -> None:
    """Have pools start stand-ins."""
    from specdebug.campaign.trials.command import ThreadedSource
    from specdebug.workers.pool import WorkerPool

    start, launch = WorkerPool.__init__, WorkerPool.launch
    payload = (whats.pop(0), done, folder, os.getpid())

    def stand_ins(self: WorkerPool, jobs: int = 0, *given: object) -> None:
        start(self, jobs, preload=())

    def stand_in(self: WorkerPool, job: Any) -> None:
        launch(self, dataclasses.replace(job, target=f"{HERE}:work", payload=payload))

    def closing(close: Callable[[Any], None]) -> Callable[[Any], None]:
        def closed(self: Any) -> None:
            if whats and len(list(Path(folder).iterdir())) > done:
                happen(whats.pop(0), os.getpid())
            close(self)

        return closed

    WorkerPool.__init__ = stand_ins  # type: ignore[method-assign]
    WorkerPool.launch = stand_in  # type: ignore[method-assign]
    WorkerPool.close = closing(WorkerPool.close)  # type: ignore[method-assign]
    ThreadedSource.close = closing(ThreadedSource.close)  # type: ignore[method-assign]
    WorkerPool.prepare = lambda *given: None  # type: ignore[method-assign]


def at_the_beginning(whats: list[str]) -> None:
    """Have it come when the command has been found and is about to be called."""
    from typer.core import TyperCommand

    invoke = TyperCommand.invoke

    def invoked(self: TyperCommand, ctx: Any) -> Any:
        try:
            happen(whats.pop(0), os.getpid())
        except KeyboardInterrupt:
            for what in whats:
                happen(what, os.getpid())
            raise
        return invoke(self, ctx)

    TyperCommand.invoke = invoked  # type: ignore[method-assign]


def main(whats: str, done: str, folder: str, *argv: str) -> None:
    """Run the command line."""
    from specdebug.cli.main import main as command

    if done == "-":
        at_the_beginning(whats.split(","))
    else:
        with_stand_ins(whats.split(","), int(done), folder)
    sys.argv = ["specdebug", *argv]
    command()


if __name__ == "__main__":
    cut = sys.argv.index("--")
    main(*sys.argv[1:cut], *sys.argv[cut + 1 :])
