"""Progress of runs on stderr: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import IO

from rich.table import Table
from rich.text import Text

from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.report.foreign import shown
from specdebug.report.lines import PlainLines
from specdebug.report.live import LiveDisplay
from specdebug.report.terminal import VERDICT_STYLE
from specdebug.report.words import ended
from specdebug.verdict.ledger import Ledger

QUIET_S = 5.0
"""Plain output: seconds between two lines about an arm that is still running."""

BUSY_S = 2.0
"""Plain output: what takes less than this, most kernels of a warm cache, is not worth a line of its own."""

MAX_ROWS = 12
"""Live display: arms shown at a time; those that ended first make room."""


@dataclass
class _Row:
    """The state of an arm: its ``activity``, the time when that began, and the time when that was last said."""

    since: float
    said_at: float
    text: str = "starting"
    activity: str = ""

    def moved(self, ledger: Ledger, now: float) -> None:
        """Take over the ledger's state; a new activity starts a new clock."""
        if ledger.activity != self.activity:
            self.activity, self.since = ledger.activity, now
        self.text = progress_text(ledger)

    def line(self, now: float) -> str:
        """The text, and the seconds that the activity has taken."""
        return f"{self.text}, {now - self.since:.0f} s" if self.activity else self.text


class PlainProgress(PlainLines):
    """One line when an arm ends, and one every few seconds while it runs."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._rows: dict[str, _Row] = {}

    def arm_started(self, run: ArmRun) -> None:
        now = time.monotonic()
        self._rows[run.key] = _Row(now, now)

    def arm_moved(self, run: ArmRun, ledger: Ledger) -> None:
        now, row = time.monotonic(), self._rows[run.key]
        row.moved(ledger, now)
        if now - row.said_at >= QUIET_S:
            self._say_row(run.key, row, now)

    def waiting(self) -> None:
        """Say of an arm that has reported nothing for a while that it is busy."""
        now = time.monotonic()
        for key, row in self._rows.items():
            begun_unsaid = row.said_at < row.since and now - row.since >= BUSY_S
            if row.activity and (begun_unsaid or now - row.said_at >= QUIET_S):
                self._say_row(key, row, now)

    def arm_ended(self, result: ArmResult) -> None:
        self._rows.pop(result.run.key, None)
        outcome = result.outcome
        said = ended(outcome.verdict, outcome.signature)
        self._say(f"{result.run.key}: {said}, {outcome.metrics.wall_s:.1f} s")

    def notice(self, text: str) -> None:
        """Say something that concerns the whole run."""
        self._say(text)

    def _say_row(self, key: str, row: _Row, now: float) -> None:
        row.said_at = now
        self._say(f"{key}: {row.line(now)}")


class LiveProgress(LiveDisplay):
    """A small table that follows every arm."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._rows: dict[str, _Row | Text] = {}
        self._ended: list[str] = []

    def arm_started(self, run: ArmRun) -> None:
        now = time.monotonic()
        self._rows[run.key] = _Row(now, now)

    def arm_moved(self, run: ArmRun, ledger: Ledger) -> None:
        row = self._rows[run.key]
        if isinstance(row, _Row):
            row.moved(ledger, time.monotonic())

    def waiting(self) -> None:
        """The display has a clock of its own."""

    def arm_ended(self, result: ArmResult) -> None:
        outcome = result.outcome
        text = Text(outcome.verdict, VERDICT_STYLE[outcome.verdict])
        text.append(f" {shown(outcome.signature or '')}")
        self._rows[result.run.key] = text
        self._ended.append(result.run.key)
        if len(self._rows) > MAX_ROWS:
            del self._rows[self._ended.pop(0)]

    def notice(self, text: str) -> None:
        """Say something that concerns the whole run; it stays above what is drawn."""
        self._console.print(Text(text))

    def _draw(self) -> Table:
        now = time.monotonic()
        table = Table.grid(padding=(0, 2))
        for name, row in tuple(self._rows.items()):  # drawn by another thread than the one that changes it
            table.add_row(Text(shown(name)), row if isinstance(row, Text) else Text(shown(row.line(now))))
        return table


def progress_text(ledger: Ledger) -> str:
    """The stage of a run, its requests, its first violation and its activity."""
    busy = f", {ledger.activity}" if ledger.activity else ""
    if ledger.planned_requests == 0:
        return ledger.stage + busy
    done = f"{ledger.finished_requests} of {ledger.planned_requests} requests"
    text = f"{ledger.stage}, step {ledger.step}, {done}"
    if ledger.violations:
        text += f", found {ledger.violations[0].signature}"
    return text + busy


def progress_on(stream: IO[str]) -> PlainProgress | LiveProgress:
    """The display that suits the stream."""
    return LiveProgress(stream) if stream.isatty() else PlainProgress(stream)
