"""``specdebug triage``."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.base.yamlio import one_line
from specdebug.cli.options import ContentOptions, Jobs, JsonOptions, grouped
from specdebug.cli.output import check_writable, note, tell
from specdebug.cli.running import UNDECIDED, progress, workers

QUIET_S = 3.0
"""The time after which the progress of reading is told again."""
MAX_NAME = 4096

if TYPE_CHECKING:
    from specdebug.apps.triage.run import Tried
    from specdebug.logs.scan import Scan
    from specdebug.scenario.library import Library


@grouped
def triage(
    *,
    log: Annotated[str, typer.Argument(metavar="LOG|-", help="A log file; - reads standard input.")],
    run: Annotated[bool, typer.Option("--run", help="Try the candidates: does one fail as the log did?")] = False,
    scenario: Annotated[
        Path | None, typer.Option("--scenario", metavar="FILE", help="Write the launch flags in the log as a scenario.")
    ] = None,
    results: JsonOptions,
    jobs: Jobs = 0,
    shared: ContentOptions,
) -> int:
    """Name the failure in a log (ours, an engine's, a test runner's), the fixes to suspect, and what to run next.

    Exit code 0 when a failure was found, 1 when the log holds none. With --run: 0 when a candidate fails as the log
    did, 125 when none does.
    """
    from specdebug.logs.scan import scan

    results.check()
    if scenario is not None:
        check_writable(scenario)
    name = "stdin" if log == "-" else log
    shown = one_line(name, MAX_NAME)
    try:
        with _open(log, shown) as stream:
            found = scan(stream, _progress(shown))
    except OSError as error:
        raise SpecDebugError(f"{shown}: cannot be read: {error.strerror or error}") from None
    except ValueError:  # a zero byte in its name
        raise SpecDebugError(f"{shown}: is no name of a file") from None
    library = shared.library()
    return _answer(name, found, library, results, run=run, jobs=jobs, scenario=scenario)


@interrupts.held()
def _answer(
    name: str, found: Scan, library: Library, results: JsonOptions, *, run: bool, jobs: int, scenario: Path | None
) -> int:
    """Rank the candidates, try them if that is wanted, tell the results, and return the exit code."""
    from specdebug.apps.triage.candidates import candidates, commands
    from specdebug.report.triage import triage_report

    best = candidates(found, library)
    tried: tuple[Tried, ...] = ()
    cut_short, trouble = False, None
    if run and best and found.main is not None:
        from specdebug.apps.triage import run as trying

        try:
            with workers(jobs) as pool, progress() as watcher:
                tried, cut_short = trying.try_out(pool, library, best, found.main, watcher)
        except KeyboardInterrupt:
            cut_short = True
        except SpecDebugError as error:  # what the log told is said all the same
            trouble = error
    told, made, unmade = _with_scenario(commands(found, best, library), name, found, scenario)
    code = interrupts.exit_code() if cut_short else _exit_code(found, run, tried)
    report = triage_report(name, one_line(name, MAX_NAME), found, best, told, tried, code)
    return tell(report, results, (scenario if made else None, lambda: made), trouble=trouble or unmade)


def _exit_code(found: Scan, run: bool, tried: tuple[Tried, ...]) -> int:
    if found.main is None:
        return 1
    return UNDECIDED if run and not any(one.alike for one in tried) else 0


def _with_scenario(
    told: tuple[str, ...], name: str, found: Scan, scenario: Path | None
) -> tuple[tuple[str, ...], str, SpecDebugError | None]:
    """The commands to run next, with that for a scenario of the launch flags; its text, empty where none is wanted or
    can be made; and why none can."""
    from specdebug.apps.triage.scenario import scenario_text

    if scenario is not None:
        try:
            text = scenario_text(found.facts, one_line(name, MAX_NAME))
        except SpecDebugError as error:
            return told, "", error
        return (*told, shlex.join(("specdebug", "replay", str(scenario)))), text, None
    if found.main is None or not found.facts.origin.flags:
        return told, "", None
    again = shlex.join(("specdebug", "triage", "LOG" if name == "stdin" else name, "--scenario", "from-log.yaml"))
    return (*told, f"{again}   # its launch flags as a scenario"), "", None


def _progress(name: str) -> Callable[[int], None]:
    """Return a function that tells on stderr how much of a log is read, if that takes a while."""
    begun = told = time.monotonic()

    def read(size: int) -> None:
        nonlocal told
        if (now := time.monotonic()) >= told + QUIET_S:
            told = now
            note(f"reading {name}: {size >> 20} MiB in {now - begun:.0f} s")

    return read


def _open(log: str, shown: str) -> AbstractContextManager[BinaryIO]:
    if log != "-":
        if stat.S_ISFIFO(os.stat(log).st_mode):  # opening one waits for a writer that may never come
            raise SpecDebugError(
                f"{shown}: is a pipe; read it from standard input: specdebug triage - < {shlex.quote(shown)}"
            )
        return open(log, "rb")
    if sys.stdin is None:
        raise SpecDebugError("stdin: is closed; name a log file")
    return nullcontext(sys.stdin.buffer)
