"""The page of ``specdebug bisect``: the culprit, the search for it, and every trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specdebug.base.trial import Trial, TrialResult
from specdebug.bisect import BayesianSearch
from specdebug.campaign.trials.journal import not_engine_code
from specdebug.campaign.trials.search import Findings
from specdebug.report.bisect import Bisection, bisect_document, rate_text, switched_text, verdict_line
from specdebug.report.html.page import Chip, Head, render
from specdebug.report.html.posterior import LINES, History, history, posterior_bars, posterior_plot
from specdebug.report.words import NOT_ENGINE_CODE


def bisect_page(
    findings: Findings,
    subject: Bisection,
    exit_code: int,
    trials: Mapping[int, tuple[Trial, TrialResult]],
    evidence: Mapping[str, str],
    chooser: Callable[[], BayesianSearch],
    pattern: str | None,
    command: str,
) -> str:
    """The page, whatever the result.

    Args:
        trials: those in the journal, by number; ``evidence``: by signature, the text that its first trial left.
        chooser: makes a chooser that has seen no trial yet.
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
            NOT_ENGINE_CODE: "; ".join(not_engine_code(evidence)),
        },
        command=command,
    )
    rows = [
        (
            trial,
            result,
            verdict,
            switched_text(trial, subject),
            ", ".join(map(subject.names.__getitem__, subject.ordered(trial.reverted))),
        )
        for (trial, result), verdict in zip(counted, past.verdicts, strict=True)
    ]
    names = [subject.called(culprits) for culprits in past.likeliest]
    belief = _belief(past, subject)
    return render(
        "bisect.html",
        head,
        document=bisect_document(findings, subject, exit_code, evidence),
        belief=belief,
        bars=posterior_bars([(name, probability) for name, _, probability in belief[:LINES]]),
        plot=posterior_plot(past, names) if counted else None,
        lines=names,
        trials=rows,
    )


def _chip(findings: Findings, subject: Bisection) -> Chip:
    answer = findings.answer
    if answer is None:
        told = findings.reason if findings.reason in ("interrupted", "unproven") else "undecided"
        return Chip(told, "unknown")
    if not answer.culprits:
        return Chip("no culprit", "pass")
    return Chip(f"culprit: {subject.called(answer.culprits)}", "fail")


def _belief(past: History, subject: Bisection) -> list[tuple[str, str, float]]:
    return [
        (subject.called(culprits), "; ".join(subject.labels[one] for one in subject.ordered(culprits)), probability)
        for culprits, probability in past.looks[-1][1][: 2 * LINES]
    ]


def _named(trial: Trial, subject: Bisection) -> str:
    return ", ".join(subject.names[one] for one in subject.ordered(trial.reverted))
