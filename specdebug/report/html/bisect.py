"""The page of ``specdebug bisect``: the culprit, how the search came to it, and every trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specdebug.report.bisect import Bisection, bisect_document, rate_text, switched_text, verdict_line
from specdebug.report.html.page import Chip, Head, render
from specdebug.report.html.posterior import LINES, History, history, posterior_bars, posterior_plot
from specdebug.trials.search import Chooser, Findings
from specdebug.trials.trial import Trial, TrialResult

MAX_TRIALS = 1000
"""Rows of the table of trials, the last ones; the journal has them all."""


@dataclass(frozen=True)
class TrialRow:
    """One trial. ``reproduce``: the command that runs it again."""

    number: int
    verdict: str
    signature: str
    switched: str
    named: str
    seed: int
    seconds: float


def bisect_page(
    findings: Findings,
    subject: Bisection,
    exit_code: int,
    trials: Mapping[int, tuple[Trial, TrialResult]],
    evidence: Mapping[str, str],
    chooser: Callable[[], Chooser],
    pattern: str | None,
    command: str,
) -> str:
    """The page, whatever the search came to.

    Args:
        trials: those in the journal, by number; of each signature ``evidence`` has what its first left.
        chooser: makes what draws conclusions, in its first state.
        pattern: the signatures to follow, if they were given.
    """
    standing = findings.standing
    counted = [trials[number] for number in range(standing.trials)]
    past = history(counted, chooser, pattern)
    head = Head(
        title=subject.what.rstrip(","),
        chips=[_chip(findings, subject)],
        summary=verdict_line(findings, subject),
        facts={
            "over": f"{subject.over} ({len(subject.labels)} candidates)",
            "trials": str(standing.trials) + (f", {standing.resumed} from the journal" if standing.resumed else ""),
            "fails with the culprit": rate_text(standing.rates.manifest),
            "without": rate_text(standing.rates.false_failure),
            "signature followed": standing.followed or "none: nothing failed",
            "untestable": str(standing.untestable),
            "time in trials": f"{sum(result.seconds for _, result in counted):.1f} s",
            "exit code": str(exit_code),
            "journal": subject.journal,
        },
        command=command,
    )
    rows = [
        _row(trial, result, verdict, subject) for (trial, result), verdict in zip(counted, past.verdicts, strict=True)
    ]
    names = [subject.called(culprits) for culprits in past.likeliest]
    return render(
        "bisect.html",
        head,
        document=bisect_document(findings, subject, exit_code, evidence),
        belief=_belief(past, subject),
        bars=posterior_bars([(subject.called(culprits), p) for culprits, p in past.looks[-1][1][:LINES]]),
        plot=posterior_plot(past, names) if counted else None,
        lines=names,
        trials=rows[-MAX_TRIALS:],
        more_trials=max(0, len(rows) - MAX_TRIALS),
    )


def _chip(findings: Findings, subject: Bisection) -> Chip:
    answer = findings.answer
    if answer is None:
        return Chip("interrupted" if findings.reason == "interrupted" else "undecided", "unknown")
    if not answer.culprits:
        return Chip("no culprit", "pass")
    return Chip(f"culprit: {subject.called(answer.culprits)}", "fail")


def _belief(past: History, subject: Bisection) -> Sequence[tuple[str, str, float]]:
    return [
        (subject.called(culprits), "; ".join(subject.labels[one] for one in subject.ordered(culprits)), probability)
        for culprits, probability in past.looks[-1][1][: 2 * LINES]
    ]


def _row(trial: Trial, result: TrialResult, verdict: str, subject: Bisection) -> TrialRow:
    return TrialRow(
        number=trial.number,
        verdict={"other": "other failure"}.get(verdict, verdict),
        signature=result.signature or "",
        switched=switched_text(trial, subject),
        named=", ".join(subject.names[one] for one in subject.ordered(trial.reverted)),
        seed=trial.seed,
        seconds=result.seconds,
    )
