"""Mutants for a person, and as plain data: the progress, the score by file and operator, the survivors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from rich.console import Group, RenderableType
from rich.text import Text

from specdebug import __version__
from specdebug.mutants.find import Mutant
from specdebug.mutants.measure import Measured
from specdebug.mutants.rows import MutantRow, Score, scores
from specdebug.report.lines import PlainLines
from specdebug.report.live import LiveDisplay
from specdebug.report.tables import Column, Listing, columns, line
from specdebug.report.words import counted, journal_line

COLUMNS = (Column("", key=True), *columns("mutants", "effective", "caught", "score", "95% interval", right=True))
LISTED = (Column("mutant", key=True), Column("function", prose=True))
WATCHED: Sequence[tuple[str, str]] = (
    ("draft", "draft_state"),
    ("tree.", "draft_state"),
    ("accept.", "acceptance"),
    ("commit.", "acceptance"),
    ("verify.", "acceptance"),
    ("sampler.", "sampling"),
    ("kv_pool.", "draft_kv"),
    ("move_kv_cache.", "draft_kv"),
    ("target_", "lossless"),
    ("requests", "ends"),
    ("queues", "ends"),
    ("radix tree", "pools"),
    ("free ", "pools"),
    ("prefix_cache.", "pools"),
    ("attention.", "lossless"),
)
"""By the beginning of a site's or a book's name, the oracle that looks at that stage's results."""


@dataclass(frozen=True)
class MutantQuestion:
    """The question: mutants drawn with a seed, and where the trials are kept."""

    number: int
    seed: int
    journal: str


class PlainMutants(PlainLines):
    """A line for each mutant, and a few while the sound engine runs."""

    def sound(self, done: int, of: int) -> None:
        """Say once in a while how many arms the sound engine has run."""
        if done == of or done % 5 == 0:
            self._say(f"sound engine: {done} of {counted(of, 'arm')}")

    def counted(self, row: MutantRow, done: int, of: int, kept: bool) -> None:
        """Say what became of a mutant."""
        self._say(f"{done} of {of}: {row.id}: {row_text(row)}{' (in the journal)' if kept else ''}")


class LiveMutants(LiveDisplay):
    """The counts, and the survivors met last."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._began = time.monotonic()
        self._text = "starting"
        self._rows: list[MutantRow] = []

    def sound(self, done: int, of: int) -> None:
        """Draw how many arms the sound engine has run."""
        self._text = f"sound engine: {done} of {counted(of, 'arm')}"

    def counted(self, row: MutantRow, done: int, of: int, kept: bool) -> None:
        """Draw the counts from now on."""
        self._rows.append(row)
        effective = [each for each in self._rows if each.effective]
        self._text = f"{done} of {of}, {sum(each.caught for each in effective)} of {len(effective)} effective caught"

    def _draw(self) -> RenderableType:
        survivors = [each for each in self._rows if each.survived][-5:]
        seconds = f"{time.monotonic() - self._began:.0f} s"
        return Group(Text(f"mutants: {self._text}, {seconds}", "bold"), *(line(each.id, "red") for each in survivors))


def mutants_progress(stream: IO[str]) -> PlainMutants | LiveMutants:
    """The display that suits the stream."""
    return LiveMutants(stream) if stream.isatty() else PlainMutants(stream)


def row_text(row: MutantRow) -> str:
    """Say in a few words how a mutant ended."""
    if row.caught:
        return f"{row.signature} in {row.scenario}"
    if not row.effective:
        return f"{'only rounding' if row.rounding else 'no effect'} in {counted(row.ran, 'arm')}"
    return f"SURVIVED {counted(row.ran, 'arm')}; {difference_text(row)}"


def difference_text(row: MutantRow) -> str:
    """Where it first differs from the sound engine."""
    first = row.difference
    if first is None:
        return row.rejected
    whose = f", {first.request}" if first.request else ""
    at = "" if first.step is None else f"step {first.step}, "
    return f"first other in {first.scenario}: {at}{first.site or 'the schedule'} ({first.kind}){whose}"


def advice(row: MutantRow) -> str:
    """Name the oracle that looks at the stage, if any, and say what that means."""
    if row.difference is None:
        return "the run ended as the user's mistake, not as a failure"
    site = row.difference.site
    if not row.difference.read:
        return "nothing else differs in any arm: nobody reads there what is wrong, or no scenario has what does"
    oracle = next((name for start, name in WATCHED if site.startswith(start)), None)
    if oracle is None:
        return f"no oracle looks at {site or 'the schedule'}"
    return f"{oracle} looks at that stage, and saw nothing wrong with what came of it"


def mutants_document(measured: Measured, asked: MutantQuestion, exit_code: int) -> dict[str, Any]:
    """Everything, as plain data."""
    rows = measured.rows
    return {
        "specdebug": __version__,
        "exit_code": exit_code,
        "reason": measured.reason,
        "sample": measured.planned,
        "seed": asked.seed,
        "journal": asked.journal,
        "resumed": measured.resumed,
        "score": measured.total.to_dict(),
        "by_file": [each.to_dict() for each in scores(rows, lambda row: row.file)],
        "by_operator": [each.to_dict() for each in scores(rows, lambda row: row.operator)],
        "unreached": {file: {"mutants": of, "unreached": missed} for file, (missed, of) in measured.unreached.items()},
        "mutants": [row.to_dict() | ({"would_catch": advice(row)} if row.survived else {}) for row in rows],
    }


def render_mutants(measured: Measured, asked: MutantQuestion) -> RenderableType:
    """The score by file and by operator, the survivors, the lines that nothing runs."""
    rows = measured.rows
    shown: list[RenderableType] = []
    for name, key in (("file", lambda row: row.file), ("operator", lambda row: row.operator)):
        shown += [Listing((Column(name, key=True), *COLUMNS[1:]), map(_cells, scores(rows, key))), Text()]
    for row in measured.survivors:
        shown += [line(f"survived: {row.id} in {row.function}", "bold red"), line(f"  {difference_text(row)}")]
        shown += [line(f"  {advice(row)}"), *(line(f"    {each}", "dim") for each in row.diff.split("\n")[2:]), Text()]
    unreached = {file: of for file, of in measured.unreached.items() if of[0]}
    if unreached:
        shown.append(line("run by no arm, so nothing was drawn of it:", "bold"))
        shown += [line(f"  {file}: {missed} of {counted(of, 'mutant')}") for file, (missed, of) in unreached.items()]
    journal = journal_line(asked.journal, measured.reason, measured.resumed, len(rows))
    return Group(*shown, line(journal, "dim"), line(closing_line(measured), "bold"))


def closing_line(measured: Measured) -> str:
    """The score in one line."""
    total = measured.total
    cut = (
        "" if len(measured.rows) == measured.planned else f"stopped after {len(measured.rows)} of {measured.planned}; "
    )
    times = f", {total.by_time} of them by a time-out alone" if total.by_time else ""
    return f"{cut}{total.caught} of {total.effective} effective mutants caught ({score_text(total)}){times}"


def score_text(score: Score) -> str:
    """The score and its interval."""
    if score.rate is None:
        return "no score"
    return f"{score.rate:.1%}, 95% interval {interval_text(score)}"


def interval_text(score: Score) -> str:
    return f"{score.interval.low:.1%} to {score.interval.high:.1%}"


def listing(mutants: Sequence[Mutant]) -> Listing:
    """The mutants that there are."""
    return Listing(LISTED, [(mutant.id, mutant.function) for mutant in mutants])


def mutant_document(mutant: Mutant) -> dict[str, Any]:
    """One that could be made, as plain data."""
    names = ("id", "function", "line", "operator", "diff")
    return {"file": f"specdebug/{mutant.file}", **{name: getattr(mutant, name) for name in names}}


def _cells(score: Score) -> tuple[str, ...]:
    rate = "-" if score.rate is None else f"{score.rate:.0%}"
    interval = "-" if score.rate is None else interval_text(score)
    return (score.name, str(score.mutants), str(score.effective), str(score.caught), rate, interval)
