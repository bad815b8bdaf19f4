"""Everything there is to check and time on a GPU, in one go, in under ten minutes on a bare machine.

``python benchmarks/gpu/suite.py OUT`` (or ``make gpu OUT=folder``) runs the stages below one after another, each in
processes of its own with a time limit, writes their logs and tables to the folder OUT and ends with one summary. Checks
run two at a time; what is timed has the machine to itself. ``stages.py`` says what they are. Those that take long, as
the matrix over twenty seeds does, are run by their names, or with ``--long``. A figure that misses its bound
(``bounds.py``) fails its stage; ``--no-bounds`` is for a noisy machine.

It runs from a checkout that is not installed and needs no variable set: every stage finds the checkout on its path and
gets as many threads as the cores allow. A stage whose packages are missing is skipped, and the line that installs them
is printed at the start. A stage that fails does not keep the others from running, unless the device does not answer any
more: then the stage's failure says nothing, and no other is begun. At a stage's limit, after a Ctrl-C or
a TERM, and when a stage ends by itself, every process that it started is ended, whatever group or session it is in.
All stages together take no longer than ``--budget`` says: one that would not fit is not begun.

Exit codes:
    0: all chosen stages are ok.
    1: a stage failed, or ran out of its own time.
    125: none failed, but not all is known: a stage was skipped, was not run or was cut off because the time was over,
        or came to no verdict itself, or the device is gone.
    130, 143: a Ctrl-C, a TERM.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TextIO

sys.path.insert(0, str(Path(__file__).parent))
from stages import PYTHON, ROOT, Stage, stages

TAIL = 25
LANES = 2
"""Checks at a time: one alone leaves cores and device idle while its workers start."""
TOLD = ("lossless", "determinism", "probes", "decode", "workers", "latent")
"""Stages whose results are worth reading even when nothing is wrong."""

BUDGET_S = 600.0
CLOSING_S = 10.0
"""Of the budget, kept back for ending what runs and for the summary."""
GRACE_S = 3.0
"""How long a stage may take to end itself before it is killed."""
LOOK_S = 0.1
PROBE_S = 30.0
"""How long a device may take to show that it is there."""
NO_VERDICT = 125

DISTRIBUTIONS = {"yaml": "pyyaml", "xdist": "pytest-xdist"}
"""By the name that is imported: the name that is installed, where it is another."""

MARK = "SPECDEBUG_GPU_STAGE"
"""Set in a stage's environment, and so in that of all processes it starts, to a value of its own."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Where libraries read how many threads they may start."""

End = Literal["ok", "failed", "no verdict", "out of time", "skipped", "not run", "cut off", "interrupted"]


@dataclass(frozen=True)
class Result:
    """How a stage ended: in a word, its exit status (None without one), seconds, and why, or its last line."""

    stage: Stage
    end: End
    status: int | None
    seconds: float
    last: str


class Clock:
    """How long there still is: until the budget is spent, or until something stops it all.

    ``stopped_by`` is the number of the signal that did; ``gone`` says what became of the device.
    """

    def __init__(self, budget_s: float | None) -> None:
        self._until = float("inf") if budget_s is None else time.monotonic() + budget_s - CLOSING_S
        self.stopped_by: int | None = None
        self.gone = ""

    @property
    def left_s(self) -> float:
        """Seconds that may still be spent on stages."""
        return max(0.0, self._until - time.monotonic())

    def stop(self, number: int, frame: object = None) -> None:
        """A signal handler: what runs is ended, nothing more is begun, the summary is still made."""
        self.stopped_by = number

    @contextlib.contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Have a Ctrl-C and a TERM call :meth:`stop` meanwhile."""
        before = {number: signal.signal(number, self.stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(stage: Stage, mark: str) -> dict[str, str]:
    """Ours, with the checkout on the path and threads for a stage's workers: those of all lanes share the cores."""
    threads = max(1, cores() // (stage.workers * (1 if stage.timed else LANES)))
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    settings = {name: str(threads) for name in THREADS}
    return {**os.environ, **settings, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", MARK: mark}


def run(stage: Stage, out: Path, clock: Clock) -> Result:
    """Run a stage with its output in ``OUT/<name>.log``, and end whatever it leaves behind."""
    if stage.missing:
        return Result(stage, "skipped", None, 0.0, f"missing: {', '.join(stage.missing)}")
    if clock.stopped_by is not None:
        return Result(stage, "not run", None, 0.0, "interrupted before")
    if clock.gone:
        return Result(stage, "not run", None, 0.0, clock.gone)
    if clock.left_s < stage.takes_s:
        return Result(stage, "not run", None, 0.0, f"{clock.left_s:.0f} s were left")
    log = out / f"{stage.name}.log"
    mark, began = uuid.uuid4().hex, time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        print("$", *stage.command, file=file, flush=True)
        try:
            process = _begin(stage, mark, file)
        except OSError as error:
            return Result(stage, "not run", None, 0.0, f"cannot be started: {error}")
        end = _wait(process, stage, clock)
        left = end_all(process, mark)
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        if left:
            print(f"processes left behind, and ended: {left}", file=file)
    status = process.returncode if end in ("ok", "failed", "no verdict") else None
    return Result(stage, end, status, time.monotonic() - began, lines[-1])


def _begin(stage: Stage, mark: str, log: TextIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        stage.command,
        cwd=ROOT,
        env=environment(stage, mark),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _wait(process: subprocess.Popen[bytes], stage: Stage, clock: Clock) -> End:
    """Wait until it ends, or has to."""
    deadline = time.monotonic() + stage.limit_s
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(LOOK_S)
            return "ok" if status == 0 else "no verdict" if status == NO_VERDICT else "failed"
        if clock.stopped_by is not None:
            return "interrupted"
        if time.monotonic() >= deadline:
            return "out of time"
        if not clock.left_s:
            return "cut off"


def end_all(process: subprocess.Popen[bytes], mark: str) -> int:
    """End a stage and all that it started. Returns how many processes had to be killed beside its own.

    Its group is asked first. Workers have sessions of their own and new parents by then, so what is killed afterwards
    is told by its environment (on Linux; elsewhere the group is all that is known).
    """
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    _signal_group(process, signal.SIGKILL)
    process.wait()
    killed: set[int] = set()
    until = time.monotonic() + GRACE_S
    while (found := [pid for pid in _marked(mark) if _kill(pid)]) and time.monotonic() < until:
        killed.update(found)
        time.sleep(0.01)  # a killed process takes a moment to go, and may just have started another
    return len(killed)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _marked(mark: str) -> Iterator[int]:
    """Processes with a stage's mark in their environment; zombies have none."""
    for entry in Path("/proc").glob("[0-9]*"):
        if _has(entry, mark):
            yield int(entry.name)


def _has(entry: Path, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return False


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def run_all(chosen: Sequence[Stage], out: Path, clock: Clock) -> list[Result]:
    """Run them in order, checks two at a time, and say each as it ends."""
    results: list[Result] = []
    for timed, group in itertools.groupby(chosen, lambda stage: stage.timed):
        with ThreadPoolExecutor(1 if timed else LANES) as lanes:
            results += lanes.map(lambda stage: _run_and_say(stage, out, clock), group)
    return results


def _run_and_say(stage: Stage, out: Path, clock: Clock) -> Result:
    result = run(stage, out, clock)
    if result.end in ("failed", "out of time"):
        clock.gone = clock.gone or device_trouble()
        if clock.gone:
            result = replace(result, end="no verdict", last=clock.gone)
    print(f"{stage.name}: {result.end} in {result.seconds:.0f} s", flush=True)
    return result


def device_trouble() -> str:
    """Why a process of its own cannot compute on the device; nothing where it can."""
    command = (PYTHON, "-c", "import torch; torch.ones(1, device='cuda').add_(1).item()")
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"the device is gone: nothing is computed on it in {PROBE_S:.0f} s"
    except OSError as error:
        return f"no process can be started: {error}"
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return "" if ended.returncode == 0 else f"the device is gone: {' '.join(lines[-1:])}"


def exit_code(results: Sequence[Result], clock: Clock) -> int:
    """What the module's documentation says."""
    if clock.stopped_by is not None:
        return 128 + clock.stopped_by
    ends = {result.end for result in results}
    if ends & {"failed", "out of time"}:
        return 1
    return 0 if ends <= {"ok"} else NO_VERDICT


def install_line(missing: Iterable[str]) -> str:
    """The command that installs packages, given the names that they are imported by."""
    names = (DISTRIBUTIONS.get(name, name) for name in dict.fromkeys(missing))
    return f"{PYTHON} -m pip install {' '.join(names)}"


def show(results: Sequence[Result], out: Path, told: Sequence[str] = TOLD) -> None:
    """The ends of the logs that hold tables (``told``) or failed, then one line a stage."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=130)
    for result in results:
        log = out / f"{result.stage.name}.log"
        if result.seconds and (result.end != "ok" or result.stage.name in told):
            console.rule(result.stage.name)
            tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
            console.print("\n".join(tail), markup=False, highlight=False)
    table = Table(title="stages")
    for column in ("stage", "", "seconds", "last line"):
        table.add_column(column)
    for result in results:
        ended = f"exit {result.status}" if result.end == "failed" else result.end
        table.add_row(result.stage.name, ended, f"{result.seconds:.1f}", result.last[:100])
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for tables and logs")
    parser.add_argument("--only", nargs="+", help="names of the stages to run")
    parser.add_argument("--long", action="store_true", help="the stages, too, that are run by name otherwise")
    parser.add_argument("--no-bounds", action="store_true", help="no figure fails its stage: a noisy machine")
    parser.add_argument("--jobs", type=int, default=min(8, cores() // 2))
    budget = f"seconds for all; {BUDGET_S:.0f}, or none where a long stage is among them"
    parser.add_argument("--budget", type=float, help=budget)
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    known = stages(out, max(options.jobs, 1), bounds=not options.no_bounds)
    unknown = set(options.only or ()) - {stage.name for stage in known}
    if unknown:
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(stage.name for stage in known)}")
    chosen = [s for s in known if (s.name in options.only if options.only else options.long or not s.long)]
    if importlib.util.find_spec("rich") is None:
        print(f"error: the summary needs rich; {install_line(['rich'])}", file=sys.stderr)
        return NO_VERDICT
    if missing := [name for stage in chosen for name in stage.missing]:
        print(f"stages that need {', '.join(dict.fromkeys(missing))} are skipped; {install_line(missing)}", flush=True)
    began = time.monotonic()
    clock = Clock(options.budget or (None if any(stage.long for stage in chosen) else BUDGET_S))
    with clock.stopped_by_signals():
        results = run_all(chosen, out, clock)
    show(results, out)
    ok = sum(result.end == "ok" for result in results)
    print(f"{ok} of {len(results)} stages ok in {time.monotonic() - began:.0f} s")
    plain = [{**asdict(result), "stage": result.stage.name} for result in results]
    (out / "suite.json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    return exit_code(results, clock)


if __name__ == "__main__":
    sys.exit(main())
