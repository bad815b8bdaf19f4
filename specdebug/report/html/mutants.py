"""The page of ``specdebug mutants``: the score by file and operator, and every mutant with its diff."""

from __future__ import annotations

from specdebug.mutants.measure import Measured
from specdebug.mutants.rows import scores
from specdebug.report.html.page import Chip, Head, render
from specdebug.report.mutants import MutantQuestion, advice, closing_line, difference_text, interval_text, score_text
from specdebug.report.words import counted


def mutants_page(measured: Measured, asked: MutantQuestion, exit_code: int, command: str) -> str:
    """The page, whatever the score. ``command``: the command line."""
    total, survivors = measured.total, measured.survivors
    chips = [
        Chip("every effective mutant was caught", "pass") if total.effective else Chip("nothing took effect", "unknown")
    ]
    if survivors:
        chips = [Chip(counted(len(survivors), "survivor"), "fail")]
    missing = measured.planned - len(measured.rows)
    if missing:
        chips.append(Chip(f"{counted(missing, 'mutant')} not run", "unknown"))
    head = Head(
        title="Mutants of the engine",
        chips=chips,
        summary=closing_line(measured),
        facts={
            "score": score_text(total),
            "mutants": str(total.mutants),
            "without effect": str(total.mutants - total.effective),
            "caught by a time-out alone": str(total.by_time),
            "seed": str(asked.seed),
            "time in runs": f"{sum(row.seconds for row in measured.rows):.1f} s",
            "exit code": str(exit_code),
            "journal": asked.journal,
        },
        command=command,
    )
    return render(
        "mutants.html",
        head,
        tables=[
            (name, [(each, interval_text(each)) for each in scores(measured.rows, key)])
            for name, key in (("operator", lambda row: row.operator), ("file", lambda row: row.file))
        ],
        survivors=[(row, difference_text(row), advice(row)) for row in survivors],
        others=[row for row in measured.rows if not row.survived],
        unreached=[(file, *of) for file, of in measured.unreached.items() if of[0]],
    )
