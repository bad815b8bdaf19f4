"""Progress on stderr: drawn anew on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Self, cast

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specdebug.base.redaction import redacted
from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.report.terminal import STYLES
from specdebug.report.words import ended, shown
from specdebug.verdict.ledger import Ledger

if TYPE_CHECKING:
    from specdebug.campaign.trials.sampling import Tally
    from specdebug.campaign.trials.search import Standing

QUIET_S = 5.0
"""Plain output: seconds between two lines about an arm that is still running."""
BUSY_S = 2.0
"""Plain output: what takes less than this, most kernels of a warm cache, is not worth a line of its own."""
MAX_TOLD = 2
"""Plain output: arms that a line about what is being done names at most."""
MAX_ROWS = 12
"""Live display: arms shown at a time; those that ended first make room."""


class _WhileItLasts:
    """A stream whose terminal may go away: the progress is lost then, and the results still matter."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self._stream.write(redacted(text))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class PlainLines:
    """Says lines on a stream, the last at ``said_at``. A context manager, as a display is. ``live``: it draws."""

    live = False

    def __init__(self, stream: IO[str]) -> None:
        self._stream = _WhileItLasts(stream)
        self.began = self.said_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to put back."""

    def say(self, text: str) -> None:
        """Print one line, whatever is in ``text``."""
        self.said_at = time.monotonic()
        print(shown(text), file=cast(IO[str], self._stream), flush=True)

    def doing(self) -> str:
        """What is being done, in one line. Another thread calls this."""
        return "working"


class Display(PlainLines, ABC):
    """Draws the state on a terminal several times a second for as long as it is entered; elsewhere it says lines."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self.live = stream.isatty()
        self._console = Console(file=cast(IO[str], self._stream), highlight=False)

    def __enter__(self) -> Self:
        if self.live:
            self._live = Live(console=self._console, transient=True, refresh_per_second=8, get_renderable=self._draw)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print one line, unless the state is drawn."""
        if not self.live:
            super().say(text)

    @abstractmethod
    def _draw(self) -> RenderableType:
        """Return the state of now. Another thread calls this than the one that changes the state."""


class TrialsDisplay(Display):
    """The standing of a search; says once how many trials the journal held, and as the first trial begins that it does:
    where nothing is drawn, that may take a while to be heard of again."""

    def __init__(self, stream: IO[str], journal: str) -> None:
        super().__init__(stream)
        self._journal = journal
        self._resumed = False
        self.standing: Standing | Tally | None = None

    def moved(self, standing: Standing | Tally) -> None:
        """A trial begins, or was in the journal."""
        if self.standing is None and not standing.resumed:
            self.say("the first trial begins")
        self.standing = standing
        if standing.resumed and not self._resumed:
            self._resumed = True
            self.say(f"resumed: {standing.resumed} trials are in {self._journal}")

    def doing(self) -> str:
        standing = self.standing
        return f"{standing.trials} trials, {standing.running} running" if standing else super().doing()


@dataclass
class _Row:
    """The state of an arm: its ``activity``, the time when that began, and the time when that was last said."""

    since: float
    said_at: float
    text: str = "starting"
    activity: str = ""

    def line(self, now: float) -> str:
        """The text, and the seconds that the activity has taken."""
        return f"{self.text}, {now - self.since:.0f} s" if self.activity else self.text


class RunProgress(Display):
    """A small table that follows every arm; elsewhere a line when an arm ends, and one every few seconds."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._rows: dict[str, _Row] = {}
        self._ended: dict[str, Text] = {}

    def arm_started(self, run: ArmRun) -> None:
        now = time.monotonic()
        self._rows[run.key] = _Row(now, now)

    def arm_moved(self, run: ArmRun, ledger: Ledger) -> None:
        now, row = time.monotonic(), self._rows[run.key]
        if ledger.activity != row.activity:  # a new clock
            row.activity, row.since = ledger.activity, now
        row.text = progress_text(ledger)
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
        outcome, run = result.outcome, result.run
        self._rows.pop(run.key, None)
        key = run.key.removesuffix(run.arm) + run.shown if run.key.endswith(run.arm) else run.key
        expected = ", as expected" if result.met and outcome.verdict != "pass" else ""
        text = Text(outcome.verdict + expected, STYLES["pass" if result.met else outcome.verdict])
        self._ended[key] = text.append(f" {shown(outcome.signature or '')}")
        self.say(f"{key}: {ended(outcome.verdict, outcome.signature)}{expected}, {outcome.metrics.wall_s:.1f} s")

    def notice(self, text: str) -> None:
        """Say something that concerns the whole run; it stays above what is drawn."""
        self._console.print(Text(text)) if self.live else self.say(text)

    def doing(self) -> str:
        now, rows = time.monotonic(), tuple(self._rows.items())
        return "; ".join(f"{shown(key)}: {row.line(now)}" for key, row in rows[:MAX_TOLD]) or super().doing()

    def _say_row(self, key: str, row: _Row, now: float) -> None:
        row.said_at = now
        self.say(f"{key}: {row.line(now)}")

    def _draw(self) -> Table:
        now = time.monotonic()
        table = Table.grid(padding=(0, 2))
        running = tuple(self._rows.items())  # drawn by another thread than the one that changes it
        for name, text in tuple(self._ended.items())[-max(MAX_ROWS - len(running), 1) :]:
            table.add_row(Text(shown(name)), text)
        for name, row in running:
            table.add_row(Text(shown(name)), Text(shown(row.line(now))))
        return table


def progress_text(ledger: Ledger) -> str:
    """The stage of a run, its requests, its first violation and its activity."""
    busy = f", {ledger.activity}" if ledger.activity else ""
    if ledger.planned_requests == 0:
        return ledger.stage + busy
    done = f"{ledger.finished_requests} of {ledger.planned_requests} requests"
    found = f", found {ledger.violations[0].signature}" if ledger.violations else ""
    return f"{ledger.stage}, step {ledger.step}, {done}{found}{busy}"
