"""Mutants for a person, and as plain data: the progress, the score by file and operator, the survivors."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from rich.console import Group, RenderableType
from rich.text import Text

from specdebug import __version__
from specdebug.apps.mutants.find import Mutant
from specdebug.apps.mutants.measure import Measured
from specdebug.apps.mutants.sound import LeftOutArm
from specdebug.apps.mutants.source import MutantRow, Score, scores
from specdebug.report.listings import listing
from specdebug.report.parts import Column, Line, Preformatted, Report, Section, Styled, Table, lines, plain, table
from specdebug.report.progress import Display
from specdebug.report.terminal import line
from specdebug.report.trials import journal_line
from specdebug.report.words import counted, dash

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
    """The question: mutants of an engine, drawn with a seed, and where the trials are kept. ``refused``: arms that the
    engine cannot be asked for."""

    engine: str
    number: int
    seed: int
    journal: str
    refused: tuple[LeftOutArm, ...] = ()


class MutantsProgress(Display):
    """The counts, and the survivors met last; elsewhere a line for each mutant."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._text = "starting"
        self._rows: list[MutantRow] = []

    def sound(self, done: int, of: int) -> None:
        """Say once in a while how many arms the sound engine has run."""
        self._text = f"sound engine: {done} of {counted(of, 'arm')}"
        if done == of or done % 5 == 0:
            self.say(self._text)

    def counted(self, row: MutantRow, done: int, of: int, kept: bool) -> None:
        """Say what became of a mutant."""
        self._rows.append(row)
        effective = [each for each in self._rows if each.effective]
        self._text = f"{done} of {of}, {sum(each.caught for each in effective)} of {len(effective)} effective caught"
        self.say(f"{done} of {of}: {row.id}: {row_text(row)}{' (in the journal)' if kept else ''}")

    def doing(self) -> str:
        return self._text

    def _draw(self) -> RenderableType:
        survivors = [each for each in self._rows if each.survived][-5:]
        seconds = f"{time.monotonic() - self.began:.0f} s"
        return Group(Text(f"mutants: {self._text}, {seconds}", "bold"), *(line(each.id, "red") for each in survivors))


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
        return "nothing else differs in any arm: nothing reads there what is wrong, or no scenario has what does"
    oracle = next((name for start, name in WATCHED if site.startswith(start)), None)
    if oracle is None:
        return f"no oracle looks at {site or 'the schedule'}"
    return f"{oracle} looks at that stage, and saw nothing wrong with what came of it"


def mutants_report(measured: Measured, asked: MutantQuestion, exit_code: int) -> Report:
    """The score by file and by operator, the survivors, the lines that nothing runs."""
    total, rows, summary = measured.total, measured.rows, closing_line(measured)
    by = {name: scores(rows, lambda row, name=name: getattr(row, name)) for name in ("file", "operator")}  # type: ignore[misc]
    tables = [_scores(name, each) for name, each in by.items()]
    survivors = [_survivor(row) for row in measured.survivors]
    gone = [f"{file}: {no} of {counted(of, 'mutant')}" for file, (no, of) in measured.unreached.items() if no]
    unreached = [Section("run by no arm, so nothing was drawn of it:", list(lines(gone)))] if gone else []
    without = [f"{each.name}: {each.why}" for each in (*asked.refused, *measured.left_out)]
    if without:
        unreached.append(Section("arms that are not run:", list(lines(without)), folded=True))
    seconds = sum(row.seconds for row in rows)
    document = {
        "specdebug": __version__,
        "exit_code": exit_code,
        "reason": measured.reason,
        "sample": measured.planned,
        **plain(asked, "seed journal"),
        "resumed": measured.resumed,
        "score": total.to_dict(),
        **{f"by_{name}": [each.to_dict() for each in found] for name, found in by.items()},
        "engine": asked.engine,
        "left_out": {each.name: each.why for each in (*asked.refused, *measured.left_out)},
        "unreached": {file: {"mutants": of, "unreached": missed} for file, (missed, of) in measured.unreached.items()},
        "mutants": [row.to_dict() | ({"would_catch": advice(row)} if row.survived else {}) for row in rows],
    }
    journal = Line(journal_line(asked.journal, measured.reason, measured.resumed, len(rows)), "dim")
    return Report(
        command="mutants",
        title=f"Mutants of {asked.engine}",
        summary=summary,
        exit_code=exit_code,
        document=document,
        parts=(*tables, *survivors, *unreached, journal, Line(summary)),
        chips=_chips(measured),
        facts={
            "score": _score_text(total),
            "mutants": str(total.mutants),
            "without effect": str(total.mutants - total.effective),
            "caught by a time-out alone": str(total.by_time),
            "seed": str(asked.seed),
            "time in runs": f"{seconds:.1f} s",
            "exit code": str(exit_code),
            "journal": asked.journal,
        },
        page=lambda: [*tables, *survivors, _others(measured), *unreached],
        seconds=seconds,
    )


def _scores(name: str, rows: Sequence[Score]) -> Table:
    heads = (
        Column(name, "key", lambda score: score.name),
        Column("mutants", "right", lambda score: score.mutants),
        Column("effective", "right", lambda score: score.effective),
        Column("caught", "right", lambda score: score.caught),
        Column("score", "right", lambda score: "-" if score.rate is None else f"{score.rate:.0%}"),
        Column("95% interval", "right", lambda score: "-" if score.rate is None else _interval_text(score)),
    )
    marked = frozenset(place for place, row in enumerate(rows) if row.caught < row.effective)
    return table(rows, *heads, marked=marked)


def _survivor(row: MutantRow) -> Section:
    told = [f"in {row.function}, run in {counted(row.ran, 'arm')}", difference_text(row), advice(row)]
    diff = Preformatted("\n".join(row.diff.split("\n")[2:]), "diff")
    return Section(f"survived: {row.id}", [*lines(told), diff])


def _others(measured: Measured) -> Section:
    heads = (
        Column("mutant", of=lambda row: row.id),
        Column("signature", of=lambda row: row.signature if row.caught else "no effect"),
        Column("arm", of=lambda row: dash(row.scenario)),
        Column("step", "right", lambda row: dash(row.step)),
        Column("arms run", "right", lambda row: row.ran),
        Column("diff", of=lambda row: row.diff.split("\n")[3:]),
    )
    rows = [row for row in measured.rows if not row.survived]
    listed = Section(f"{len(rows)} caught or without effect", [table(rows, *heads)], folded=True)
    return Section("The others", [listed])


def _chips(measured: Measured) -> list[Styled]:
    caught = Styled("every effective mutant was caught", "pass")
    chips = [caught if measured.total.effective else Styled("nothing took effect", "unknown")]
    if measured.survivors:
        chips = [Styled(counted(len(measured.survivors), "survivor"), "fail")]
    if missing := measured.planned - len(measured.rows):
        chips.append(Styled(f"{counted(missing, 'mutant')} not run", "unknown"))
    return chips


def closing_line(measured: Measured) -> str:
    """The score in one line."""
    total, done, of = measured.total, len(measured.rows), measured.planned
    cut = "" if done == of else f"stopped after {done} of {of}; "
    times = f", {total.by_time} of them by a time-out alone" if total.by_time else ""
    return f"{cut}{total.caught} of {total.effective} effective mutants caught ({_score_text(total)}){times}"


def _score_text(score: Score) -> str:
    return "no score" if score.rate is None else f"{score.rate:.1%}, 95% interval {_interval_text(score)}"


def _interval_text(score: Score) -> str:
    return f"{score.interval.low:.1%} to {score.interval.high:.1%}"


def mutants_list(mutants: Sequence[Mutant]) -> Report:
    """The mutants that there are."""
    names = "id function line operator diff"
    heads = (
        Column("mutant", "key", lambda mutant: mutant.id),
        Column("function", "prose", lambda mutant: mutant.function),
    )
    document = [{"file": mutant.path, **plain(mutant, names)} for mutant in mutants]
    return listing("mutants", [table(mutants, *heads)], document)
