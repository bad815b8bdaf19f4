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
from typing import TYPE_CHECKING, BinaryIO

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.base.yamlio import one_line
from specdebug.cli import options as opt
from specdebug.cli.output import UNDECIDED, check_writable, note, progress, tell, workers
from specdebug.logs.scan import scan

if TYPE_CHECKING:
    from specdebug.apps.triage import Tried
    from specdebug.logs.scan import Scan

QUIET_S = 3.0
"""The time after which the progress of reading is told again."""
MAX_NAME = 4096


class TriageCommand(opt.JsonOptions, opt.ContentOptions):
    """Name the failure in a log (ours, an engine's, a test runner's), the fixes to suspect, and what to run next.

    Exit code 0 when a failure was found, 1 when the log holds none. With --run: 0 when a candidate fails as the log
    did, 125 when none does.
    """

    example = "triage ci.log --run"
    log: str = opt.argument("A log file; - reads standard input.", default=..., metavar="LOG|-")
    try_them: bool = opt.option(
        "Revert each candidate in a scenario of ours, and say if it fails as the log did.", "--run", default=False
    )
    scenario: Path | None = opt.option("Write the launch flags in the log as a scenario.", metavar="FILE")
    jobs: int = opt.jobs_option()

    def run(self) -> int:
        self.check_outputs()
        if self.scenario is not None:
            check_writable(self.scenario)
        self.name, self.shown, found = read_log(self.log)
        with interrupts.held():
            return self._answer(found)

    def _answer(self, found: Scan) -> int:
        """Rank the candidates, try them if that is wanted, tell the results, and return the exit code."""
        from specdebug.apps.triage import candidates, commands, try_out
        from specdebug.report.listings import triage_report

        library = self.library()
        best = candidates(found, library)
        tried: tuple[Tried, ...] = ()
        cut_short, trouble = False, None
        if self.try_them and best and found.main is not None:
            try:
                with workers(self.jobs) as pool, progress() as watcher:
                    tried, cut_short = try_out(pool, library, best, found.main, watcher)
            except KeyboardInterrupt:
                cut_short = True
            except SpecDebugError as error:  # what the log told is said all the same
                trouble = error
        again, made, unmade = self._as_scenario(found)
        told = (*commands(found, best, library), *again)
        undecided = self.try_them and not any(one.alike for one in tried)
        code = 1 if found.main is None else UNDECIDED if undecided else 0
        code = interrupts.exit_code() if cut_short else code
        report = triage_report(self.name, self.shown, found, best, told, tried, code)
        return tell(report, self, (self.scenario if made else None, lambda: made), trouble=trouble or unmade)

    def _as_scenario(self, found: Scan) -> tuple[list[str], str, SpecDebugError | None]:
        """The command to run next for a scenario of the launch flags; its text, empty where none is wanted or can be
        made; and why none can."""
        from specdebug.apps.triage import scenario_text

        if self.scenario is not None:
            try:
                text = scenario_text(found.facts, self.shown)
            except SpecDebugError as error:
                return [], "", error
            return [shlex.join(("specdebug", "replay", str(self.scenario)))], text, None
        if found.main is None or not found.facts.flags:
            return [], "", None
        log = "LOG" if self.name == "stdin" else self.name
        again = shlex.join(("specdebug", "triage", log, "--scenario", "from-log.yaml"))
        return [f"{again}   # its launch flags as a scenario"], "", None


def read_log(log: str) -> tuple[str, str, Scan]:
    """The name of a log, the same fit to be shown, and what it says. Raises SpecDebugError where it cannot be read."""
    name = "stdin" if log == "-" else log
    shown = one_line(name, MAX_NAME)
    try:
        with _open(log, shown) as stream:
            return name, shown, scan(stream, _progress(shown))
    except OSError as error:
        raise SpecDebugError(f"{shown}: cannot be read: {error.strerror or error}") from None
    except ValueError:  # a zero byte in its name
        raise SpecDebugError(f"{shown}: is no name of a file") from None


def _progress(name: str) -> Callable[[int], None]:
    """What tells on stderr how much of a log is read, if that takes a while."""
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
            instead = f"specdebug triage - < {shlex.quote(shown)}"
            raise SpecDebugError(f"{shown}: is a pipe; read it from standard input: {instead}")
        return open(log, "rb")
    if sys.stdin is None:
        raise SpecDebugError("stdin: is closed; name a log file")
    return nullcontext(sys.stdin.buffer)
