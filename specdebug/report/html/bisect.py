"""The page of ``specdebug bisect``: the culprit, the search for it, and every trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specdebug.report.bisect import Bisection, bisect_document, rate_text, switched_text, verdict_line
from specdebug.report.html.page import Chip, Head, render
from specdebug.report.html.posterior import LINES, history, posterior_bars, posterior_plot
from specdebug.trials.search import Chooser, Findings
from specdebug.trials.trial import Trial, TrialResult


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
        },
        command=command,
    )

    def joined(chosen: frozenset[str], words: Mapping[str, str], between: str) -> str:
        return between.join(words[one] for one in subject.ordered(chosen))

    rows = [
        (
            trial,
            result,
            verdict,
            switched_text(trial, subject),
            joined(trial.reverted, subject.names, ", "),
        )
        for (trial, result), verdict in zip(counted, past.verdicts, strict=True)
    ]
    names = [subject.called(culprits) for culprits in past.likeliest]
    belief = [
        (subject.called(culprits), joined(culprits, subject.labels, "; "), probability)
        for culprits, probability in past.looks[-1][1][: 2 * LINES]
    ]
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
        return Chip("interrupted" if findings.reason == "interrupted" else "undecided", "unknown")
    if not answer.culprits:
        return Chip("no culprit", "pass")
    return Chip(f"culprit: {subject.called(answer.culprits)}", "fail")
