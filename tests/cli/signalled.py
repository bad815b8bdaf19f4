"""Run one command line whose workers are stand-ins, the last of which has signals sent to it.

``python -m tests.cli.signalled SIGNAL DONE FOLDER -- ARGV``: the first DONE workers end well, the next one sends the
command SIGNAL and waits to be killed. A SIGINT comes while the command waits for its workers to be gone, and one for
every line of its report. FOLDER gets a file for every worker, named by its process id.
"""

import dataclasses
import io
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

HERE = "tests.cli.signalled"


def work(payload: tuple[str, int, str, int], sink: Any) -> None:
    """Be a worker."""
    name, done, folder, parent = payload
    number = len(list(Path(folder).iterdir()))
    (Path(folder) / str(os.getpid())).touch()
    if number >= done:
        begin(sink)
        os.kill(parent, getattr(signal, name))
        while True:
            signal.pause()
    report(sink)


def begin(sink: Any) -> None:
    """Report that an arm has begun."""
    sink.emit("stage", name="run")
    sink.emit("reverts", hits={"25015": {"positions": 0}})


def report(sink: Any) -> None:
    """Report an arm that passes."""
    begin(sink)
    sink.emit("setup", probes_enabled=0, requests=1)
    sink.emit("arrive", rid="first.0", group="first", prompt_tokens=8)
    facts: dict[str, Any] = {"rids": ["first.0"], "cached": {}, "finished": ["first.0"], "retracted": []}
    sink.emit("step", step=1, kind="prefill", emitted={"first.0": [4]}, accept={}, s=0.1, **facts)
    sink.emit("request", rid="first.0", text="x", finish_reason="length")
    sink.emit("coverage", reached={}, hits={})
    sink.emit("done", stages_s={}, peak_rss_mb=1.0)


class _Nagged(io.TextIOWrapper):
    """A stdout that has a signal sent to us whenever it is written to."""

    def write(self, text: str) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def main(name: str, done: str, folder: str, *argv: str) -> NoReturn:
    """Run the command line with stand-ins for workers."""
    from specdebug.cli.main import main as command
    from specdebug.workers.pool import WorkerPool

    start, launch, close = WorkerPool.__init__, WorkerPool.launch, WorkerPool.close
    payload = (name, int(done), folder, os.getpid())

    def stand_ins(self: WorkerPool, jobs: int = 0, *given: object) -> None:
        start(self, jobs, preload=())

    def stand_in(self: WorkerPool, job: Any) -> None:
        launch(self, dataclasses.replace(job, target=f"{HERE}:work", payload=payload))

    def nagged(self: WorkerPool) -> None:
        if len(list(Path(folder).iterdir())) > int(done):
            os.kill(os.getpid(), signal.SIGINT)
        close(self)

    WorkerPool.close = nagged  # type: ignore[method-assign]
    WorkerPool.__init__ = stand_ins  # type: ignore[method-assign]
    WorkerPool.launch = stand_in  # type: ignore[method-assign]
    WorkerPool.prepare = lambda *given: None  # type: ignore[method-assign]
    sys.stdout = _Nagged(sys.stdout.buffer, encoding="utf-8")
    sys.argv = ["specdebug", *argv]
    command()
    raise AssertionError("a command ends by leaving")


if __name__ == "__main__":
    main(*(word for word in sys.argv[1:] if word != "--"))
