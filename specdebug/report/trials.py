"""The shared part of reports of searches: where they go on, their trials, and what the trials left."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.journal import not_engine_code
from specdebug.report.parts import Column, Line, Part, Preformatted, Section, Table, table
from specdebug.report.words import NOT_ENGINE_CODE

SHOWN_TRIALS = 500
"""Trials in a page's table, the last ones; the journal has them all."""
TO_SIGNATURES = "signatures"
"""The anchor of the section of signatures."""
GOES_ON = "the same command: it goes on from the journal"
STOPPED = {"interrupted": GOES_ON, "trouble": f"mend what stopped it, then {GOES_ON}"}
"""The next step after a search that was cut short, by the reason."""
NOT_TESTED = "run it by hand and see why it cannot be tested"

Ended = tuple[Trial, TrialResult]


def more_trials(trials: int) -> str:
    """The next step after a search that came to the end of its trials."""
    return f"the same command with --max-trials {2 * trials}: it goes on"


def journal_line(path: str, reason: str, resumed: int, trials: int) -> str:
    """The path of the journal, and the effect of running the same command again.

    ``reason``: of the end of the search; ``resumed``: those of its ``trials`` that were in the journal before.
    """
    hint = "the same command shows this again"
    if reason in STOPPED:
        hint = "the same command goes on from here"
    elif resumed == trials > 0:
        hint = "every trial was in it already; --fresh starts anew"
    return f"journal: {path} ({hint}{'; with a higher --max-trials it goes on' if reason == 'max-trials' else ''})"


def first_said(evidence: Mapping[str, str]) -> Iterator[str]:
    """The last line that the first untestable trial left, if it left any."""
    if said := evidence.get("", "").strip():
        yield f"  the first said: {said.splitlines()[-1]}"


def trial_facts(
    standing: Any, counted: Sequence[Ended], exit_code: int, journal: str, evidence: Mapping[str, str]
) -> dict[str, str]:
    """Facts of a page's head on trials that count."""
    resumed = f", {standing.resumed} from the journal" if standing.resumed else ""
    return {
        "trials": f"{standing.trials}{resumed}",
        "time in trials": f"{sum(result.seconds for _, result in counted):.1f} s",
        "exit code": str(exit_code),
        "journal": journal,
        NOT_ENGINE_CODE: "; ".join(not_engine_code(evidence)),
    }


def signatures_section(signatures: Table, evidence: Mapping[str, str]) -> Iterator[Section]:
    """The signatures that came up, and what the first trial with each left; nothing where there is none."""
    left: list[Part] = []
    for name in (str(row[0]) for row in signatures.rows):
        if said := evidence.get(name):
            block = Preformatted(said, f"evidence of {name}")
            left.append(Section(f"What the first trial with {name} left", [block], folded=True))
    if signatures.rows:
        yield Section("Signatures", [signatures, *left], anchor=TO_SIGNATURES)


def trials_section(title: str, trials: Sequence[Any], heads: Sequence[Column], note: str = "") -> Section:
    """The last trials, a row each."""
    before = len(trials) - SHOWN_TRIALS
    more = [Line(f"The last {SHOWN_TRIALS}; {before} before them are in the journal.")] if before > 0 else []
    return Section(title, [*more, *([table(trials[-SHOWN_TRIALS:], *heads)] if trials else [])], note=note)
