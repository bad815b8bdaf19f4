"""What runs are doing while they do it, on stderr: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specdebug.harness.ledger import Ledger
from specdebug.harness.replay import ArmResult, ArmRun
from specdebug.report.terminal import VERDICT_STYLE

QUIET_S = 5.0
"""Plain output: seconds between two lines about an arm that is still running."""

MAX_ROWS = 12
"""Live display: arms shown at a time; those that ended first make room."""


class PlainProgress:
    """One line when an arm ends, and one every few seconds while it runs."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._said_at: dict[str, float] = {}

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put back."""

    def arm_started(self, run: ArmRun) -> None:
        self._said_at[run.key] = time.monotonic()

    def arm_moved(self, run: ArmRun, ledger: Ledger) -> None:
        now = time.monotonic()
        if now - self._said_at[run.key] >= QUIET_S:
            self._said_at[run.key] = now
            self._say(f"{run.key}: {progress_text(ledger)}")

    def arm_ended(self, result: ArmResult) -> None:
        outcome = result.outcome
        what = f"{outcome.verdict} {outcome.signature}" if outcome.signature else outcome.verdict
        self._say(f"{result.run.key}: {what}, {outcome.metrics.wall_s:.1f} s")

    def _say(self, text: str) -> None:
        try:
            print(text, file=self._stream, flush=True)
        except OSError:  # nobody reads the progress; the results still matter
            return


class LiveProgress:
    """A small table that follows every arm."""

    def __init__(self, stream: IO[str]) -> None:
        self._rows: dict[str, Text] = {}
        self._ended: list[str] = []
        self._live = Live(console=Console(file=stream), transient=True, refresh_per_second=8)

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def arm_started(self, run: ArmRun) -> None:
        self._show(run.key, Text("starting", "dim"))

    def arm_moved(self, run: ArmRun, ledger: Ledger) -> None:
        self._show(run.key, Text(progress_text(ledger)))

    def arm_ended(self, result: ArmResult) -> None:
        outcome = result.outcome
        text = Text(outcome.verdict, VERDICT_STYLE[outcome.verdict])
        text.append(f" {outcome.signature or ''}")
        self._show(result.run.key, text)
        self._ended.append(result.run.key)
        if len(self._rows) > MAX_ROWS:
            del self._rows[self._ended.pop(0)]

    def _show(self, key: str, text: Text) -> None:
        self._rows[key] = text
        table = Table.grid(padding=(0, 2))
        for name, row in self._rows.items():
            table.add_row(Text(name), row)
        self._live.update(table)


def progress_text(ledger: Ledger) -> str:
    """Where a run stands."""
    if ledger.planned_requests == 0:
        return ledger.stage
    done = f"{ledger.finished_requests} of {ledger.planned_requests} requests"
    text = f"{ledger.stage}, step {ledger.step}, {done}"
    if ledger.violations:
        text += f", found {ledger.violations[0].signature}"
    return text


def progress_on(stream: IO[str]) -> PlainProgress | LiveProgress:
    """The display that suits the stream."""
    return LiveProgress(stream) if stream.isatty() else PlainProgress(stream)
