"""The next step at each ending of a search: a command to run, or what to see to first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdebug.patching.toggles import REVERT_VARIABLE

if TYPE_CHECKING:
    from specdebug.campaign.trials.sampling import Sampled
    from specdebug.campaign.trials.search import Findings
    from specdebug.minimise import Summary
    from specdebug.report.bisect import Bisection
    from specdebug.report.flake import Question
    from specdebug.report.hunt import HuntAnswer
    from specdebug.report.minimise import Minimisation

_GOES_ON = "the same command: it goes on from the journal"
_COMMON = {"interrupted": _GOES_ON, "trouble": f"mend what stopped it, then {_GOES_ON}"}
_COUNTED = "specdebug bisect SCENARIO --target sglang==VERSION   # there every reverted line counts its runs"
_NOT_TESTED = "run it by hand and see why it cannot be tested"


def after_bisect(findings: Findings, subject: Bisection) -> str:
    """Return the next step of a bisection."""
    answer, standing = findings.answer, findings.standing
    if answer is not None and answer.culprits:
        return subject.next_step(answer.culprits, standing.followed or "*")
    if findings.reason in _COMMON:
        return _COMMON[findings.reason]
    if findings.reason == "max-trials":
        return f"the same command with --max-trials {2 * standing.trials}: it goes on"
    if findings.reason in ("untestable", "stalled"):
        others = [one.signature for one in standing.signatures if not one.followed]
        if others and not standing.untestable:
            return f"follow another failure: the same command with --signature '{others[0]}'"
        where = f" ({subject.called(findings.untestable[0])} switched on)" if findings.untestable else ""
        return f"{_NOT_TESTED}{where}: {subject.what.rstrip(',')}"
    if standing.signatures:
        return f"{subject.how_often}   # how often it fails with nothing switched on"
    if findings.reason == "unproven" and subject.over == "commits":
        return f"see that it runs the code of the folder it is started in, not an installed package: {subject.what}"
    if findings.reason == "unproven":
        return f"{_COUNTED}; or see that the command hands {REVERT_VARIABLE} on to its engine"
    return f"{subject.how_often}   # if it fails at all; then --over config, faults or commits"


def after_flake(sampled: Sampled, question: Question, unproven: bool) -> str:
    """Return the next step of a measurement."""
    tally = sampled.tally
    if sampled.reason in _COMMON:
        return _COMMON[sampled.reason]
    if not tally.runs:
        return f"{_NOT_TESTED}: {question.what}"
    if unproven:
        fixes = ",".join(question.reverted)
        counted = f"specdebug flake SCENARIO --revert {fixes}   # there every reverted line counts its runs"
        shows = f"specdebug toggles show {question.reverted[0]}   # names a scenario that runs its lines"
        return f"{counted}; or see that {REVERT_VARIABLE} reaches the engine" if question.command else shows
    if sampled.reason == "max-trials":
        return f"the same command with --max-trials {2 * tally.trials}: it goes on"
    if tally.failures:
        return question.bisect
    return "the same command with --claim 'rate<1%'" if question.claim is None else "nothing: the claim is decided"


def after_minimise(summary: Summary[Any], subject: Minimisation) -> str:
    """Return the next step of a search for the smallest scenario."""
    if summary.reason in _COMMON:
        return _COMMON[summary.reason]
    if summary.reason == "silent":
        return f"specdebug flake {subject.what}   # how often it fails; a rare failure needs --max-trials"
    if summary.reason == "max-trials":
        return f"the same command with --max-trials {2 * summary.trials}: it goes on"
    return f"specdebug bundle {subject.output} -o small.specdebug   # to hand it on"


def after_hunt(answer: HuntAnswer) -> str:
    """Return the next step of a hunt."""
    record = answer.record
    if answer.interrupted:
        return f"{answer.words}   # goes on"
    if record.findings:
        first = max(record.findings, key=lambda one: len(record.findings[one]))
        return f"specdebug replay {answer.file_of(first)}"
    if not record.count("pass"):
        return (
            f"specdebug replay {record.folder}/{min(record.judged, default=0):05d}.yaml   # why nothing could be judged"
        )
    return f"{answer.words} with a larger --count, or another --seed"
