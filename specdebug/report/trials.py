"""The shared part of reports of searches: where they go on, their trials, and what the trials left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from specdebug.report.parts import Cell, Column, Line, Part, Preformatted, Section, Table

SHOWN_TRIALS = 500
"""Trials in a page's table, the last ones; the journal has them all."""

GOES_ON = "the same command: it goes on from the journal"
STOPPED = {"interrupted": GOES_ON, "trouble": f"mend what stopped it, then {GOES_ON}"}
"""The next step after a search that was cut short, by the reason."""
NOT_TESTED = "run it by hand and see why it cannot be tested"


def more_trials(trials: int) -> str:
    """The next step after a search that came to the end of its trials."""
    return f"the same command with --max-trials {2 * trials}: it goes on"


def journal_line(path: str, reason: str, resumed: int, trials: int) -> str:
    """The path of the journal, and the effect of running the same command again.

    ``reason``: of the end of the search; ``resumed``: those of its ``trials`` that were in the journal before.
    """
    if reason in STOPPED:
        hint = "the same command goes on from here"
    elif resumed == trials > 0:
        hint = "every trial was in it already; --fresh starts anew"
    else:
        hint = "the same command shows this again"
    if reason == "max-trials":
        hint += "; with a higher --max-trials it goes on"
    return f"journal: {path} ({hint})"


def first_said(evidence: Mapping[str, str]) -> Iterator[str]:
    """The last line that the first untestable trial left, if it left any."""
    if said := evidence.get("", "").strip():
        yield f"  the first said: {said.splitlines()[-1]}"


def signatures_section(table: Table, evidence: Mapping[str, str]) -> Iterator[Section]:
    """The signatures that came up, and what the first trial with each left; nothing where there is none."""
    left: list[Part] = [
        Section(
            f"What the first trial with {name} left", [Preformatted(evidence[name], f"evidence of {name}")], folded=True
        )
        for name in (str(row[0]) for row in table.rows)
        if evidence.get(name)
    ]
    if table.rows:
        yield Section("Signatures", [table, *left])


def trials_section(title: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], note: str = "") -> Section:
    """The last trials, a row each."""
    before = len(rows) - SHOWN_TRIALS
    more = [Line(f"The last {SHOWN_TRIALS}; {before} before them are in the journal.")] if before > 0 else []
    return Section(title, [*more, Table(columns, rows[-SHOWN_TRIALS:])], note=note)
