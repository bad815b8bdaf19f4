"""The page of ``specdebug flake``: the failure rate, its measurement, and the failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.journal import not_engine_code
from specdebug.campaign.trials.sampling import Sampled
from specdebug.report.flake import Question, decision, flake_document, rate_text, unproven, verdict_line
from specdebug.report.html.page import Chip, Head, render
from specdebug.report.html.rate import rate_plot
from specdebug.report.words import NOT_ENGINE_CODE
from specdebug.stats.claims import Apart, Below, Claim, percent


def flake_page(
    sampled: Sampled,
    question: Question,
    exit_code: int,
    reverted: list[str],
    trials: Mapping[int, tuple[Trial, TrialResult]],
    evidence: Mapping[str, str],
    pattern: str | None,
    command: str,
) -> str:
    """The page, whatever the result. ``trials``: those in the journal, by number; ``evidence``: by signature, the text
    that its first trial left; ``pattern``: the failures that were measured, if not all."""
    tally = sampled.tally
    counted = [trials[number] for number in range(tally.trials)]
    bad = [(trial, result) for trial, result in counted if result.outcome != "pass"]
    head = Head(
        title=question.what,
        chips=[Chip("unproven", "unknown") if unproven(sampled, question, evidence) else _chip(sampled, question)],
        summary=verdict_line(sampled, question, evidence),
        facts={
            "claim": "" if question.claim is None else question.claim.text,
            "rate": rate_text(tally, question.confidence),
            "trials": str(tally.trials) + (f", {tally.resumed} from the journal" if tally.resumed else ""),
            "untestable": str(tally.untestable or ""),
            "failed in another way": str(tally.masked or ""),
            "fixes reverted": ", ".join(reverted),
            "time in trials": f"{sum(result.seconds for _, result in counted):.1f} s",
            "exit code": str(exit_code),
            "journal": question.journal,
            NOT_ENGINE_CODE: "; ".join(not_engine_code(evidence)),
        },
        command=command,
    )
    return render(
        "flake.html",
        head,
        document=flake_document(sampled, question, exit_code, reverted, evidence),
        confidence=percent(question.confidence),
        plot=rate_plot(failed(counted, pattern), question.confidence, _claimed(question.claim)),
        trials=bad,
        passed=len(counted) - len(bad),
    )


def failed(counted: Sequence[tuple[Trial, TrialResult]], pattern: str | None) -> list[bool]:
    """Of every run with a verdict on the failure that is measured, True if it failed so."""
    return [
        result.outcome == "fail"
        for _, result in counted
        if result.outcome == "pass"
        or (result.outcome == "fail" and (pattern is None or fnmatchcase(result.signature or "fail", pattern)))
    ]


def _claimed(claim: Claim | None) -> tuple[float, ...]:
    """The rates that the claim speaks of."""
    if isinstance(claim, Below):
        return (claim.rate,)
    return (claim.below, claim.above) if isinstance(claim, Apart) else ()


def _chip(sampled: Sampled, question: Question) -> Chip:
    if question.claim is not None:
        holds = decision(sampled, question.claim)
        if holds is None:
            return Chip("undecided", "unknown")
        return Chip("the claim holds", "pass") if holds else Chip("the claim is refuted", "fail")
    if sampled.tally.failures:
        return Chip(f"{sampled.tally.failures} of {sampled.tally.runs} failed", "fail")
    return Chip("nothing failed", "pass") if sampled.tally.runs else Chip("no run came to a verdict", "unknown")
