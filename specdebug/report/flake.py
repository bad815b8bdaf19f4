"""A failure rate: its measurement and its result for a reader, and the result as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import IO, Any

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specdebug import __version__
from specdebug.base import interrupts
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.journal import not_engine_code, ran_key
from specdebug.campaign.trials.sampling import Sampled, Tally
from specdebug.patching.hook import REVERT_VARIABLE
from specdebug.patching.toggles import Toggle
from specdebug.report.failed import Failed, head, shows
from specdebug.report.parts import Column, Line, Part, Plot, Report, Section, Styled, lines, plain, table
from specdebug.report.progress import TrialsDisplay
from specdebug.report.trials import (
    NOT_TESTED,
    STOPPED,
    TO_SIGNATURES,
    Ended,
    first_said,
    journal_line,
    more_trials,
    signatures_section,
    trial_facts,
    trials_section,
)
from specdebug.report.words import ended, replaced, shown, times
from specdebug.search.claims import Apart, Below, Claim, clean_bound, percent
from specdebug.search.intervals import Interval, anytime_interval, clopper_pearson
from specdebug.verdict.outcome import EXIT_CODES

EVERY = 20
"""Plain output: runs between two lines, besides one for each failure."""
MAX_SIGNATURES = 8
TRIALS = (
    Column("#", "right", lambda one: one[0].number),
    Column("outcome", of=lambda one: Styled(one[1].outcome, "fail" if one[1].outcome == "fail" else "unknown")),
    Column("signature", of=lambda one: one[1].signature),
    Column("seed", "right", lambda one: one[0].seed),
    Column("time", "right", lambda one: f"{one[1].seconds:.1f} s"),
)
INTERVALS = (
    Column("interval", of=lambda one: one[0]),
    Column("from", "right", lambda one: f"{100 * one[1].low:.3f}%"),
    Column("to", "right", lambda one: f"{100 * one[1].high:.3f}%"),
)


@dataclass(frozen=True)
class Question:
    """The question, in words.

    Attributes:
        what: the command, as the user wrote it.
        claim: the claim to be decided; None to measure the rate.
        reproduce: the command that runs it with this seed.
        bisect: the command to run where it fails, with a word on what that finds.
        toggles: the fixes that every trial is to revert.
        command: it is a command, of which nothing shows that it reverts them.
    """

    what: str
    claim: Claim | None
    confidence: float
    journal: str
    reproduce: Callable[[int], str]
    bisect: str
    toggles: Sequence[Toggle] = ()
    command: bool = False

    @property
    def reverted(self) -> list[str]:
        """The numbers of those fixes."""
        return [str(toggle.pr) for toggle in self.toggles]


class FlakeProgress(TrialsDisplay):
    """The standing, drawn anew; elsewhere a line for each failure, and one every few runs."""

    def __init__(self, stream: IO[str], question: Question) -> None:
        super().__init__(stream, question.journal)
        self._question = question

    def counted(self, trial: Trial, result: TrialResult, tally: Tally) -> None:
        """Say that a trial did not pass, or the standing once in a while."""
        self.moved(tally)
        standing = standing_text(tally, self._question)
        if result.outcome != "pass":
            self.say(f"trial {trial.number}: {ended(result.outcome, result.signature)}, seed {trial.seed}; {standing}")
        elif tally.trials % EVERY == 0:
            self.say(standing)

    def _draw(self) -> RenderableType:
        tally: Any = self.standing or Tally()
        head = Text(f"flake {shown(self._question.what)}: {tally.running} running", "bold")
        grid = RichTable.grid(padding=(0, 2))
        for name, count in tally.signatures[:MAX_SIGNATURES]:
            grid.add_row(Text(str(count), "red", justify="right"), Text(shown(name)))
        return Group(head, Text(standing_text(tally, self._question)), grid)


def standing_text(tally: Tally, question: Question) -> str:
    """``3 of 40 failed: 7.5%, 95% interval 1.2% to 23.7%``, and the runs that the claim still takes."""
    text, claim = rate_text(tally, question.confidence), question.claim
    if claim is None or not tally.runs or claim.decided(tally.failures, tally.runs) is not None:
        return text
    owed = claim.owed(tally.failures, tally.runs)
    runs = "1 more clean run is" if owed == 1 else f"{owed} more clean runs are"
    return f"{text}; {runs} owed before `{claim.text.partition(' or ')[0]}` can be claimed"


def rate_text(tally: Tally, confidence: float) -> str:
    """Failures, and the rate with its interval."""
    if not tally.runs:
        return "no run has come to a verdict"
    counts = f"{tally.failures} of {tally.runs} failed"
    if not tally.failures:
        return f"{counts}: rate < {_percent(clean_bound(tally.runs, confidence))} at {percent(confidence)}"
    span = _span(anytime_interval(tally.failures, tally.runs, confidence))
    return f"{counts}: rate {_percent(tally.failures / tally.runs)}, {percent(confidence)} interval {span}"


def flake_report(
    sampled: Sampled,
    question: Question,
    reverted: list[str],
    trials: Mapping[int, Ended],
    evidence: Mapping[str, str],
    pattern: str | None,
) -> Report:
    """A measurement, whatever came of it; the exit code is 0 when the claim holds (without one: when nothing failed), 1
    when it is refuted (when something failed), else 125.

    Args:
        reverted: the fixes that ``--revert`` names.
        trials: those in the journal, by number.
        evidence: of every signature, the text that its first trial left; of untestable trials under ``""``.
        pattern: the failures that were measured, if not all.
    """
    tally, claim, holds = sampled.tally, question.claim, decision(sampled, question.claim)
    doubted = unproven(sampled, question, evidence)
    counted = [trials[number] for number in range(tally.trials)]
    if sampled.trouble is not None:
        exit_code = sampled.trouble.exit_code
    elif sampled.reason == "interrupted":
        exit_code = interrupts.exit_code()
    elif doubted or (holds is None if claim is not None else not tally.runs and not tally.failures):
        exit_code = EXIT_CODES["unknown"]
    else:
        exit_code = int(holds is False if claim is not None else bool(tally.failures))
    summary = verdict_line(sampled, question, evidence)
    facts = trial_facts(tally, counted, exit_code, question.journal, evidence)
    return Report(
        command="flake",
        title=question.what if claim is None else f"{question.what}: {claim.text}",
        summary=summary,
        exit_code=exit_code,
        document=_document(sampled, question, exit_code, reverted, counted, evidence),
        parts=list(lines((summary, *_told(sampled, question, evidence)), fold=False)),
        chips=[Styled("unproven", "unknown") if doubted else _chip(sampled, question)],
        facts={
            "claim": "" if claim is None else claim.text,
            "rate": rate_text(tally, question.confidence),
            "trials": facts["trials"],
            "untestable": str(tally.untestable or ""),
            "failed in another way": str(tally.masked or ""),
            "fixes reverted": ", ".join(reverted),
            **facts,
        },
        page=partial(_page, sampled, question, counted, evidence, pattern),
        seconds=sum(result.seconds for _, result in counted),
    )


def _told(sampled: Sampled, question: Question, evidence: Mapping[str, str]) -> Iterator[str]:
    """What stands below the verdict."""
    tally = sampled.tally
    if tally.failures:
        fixed = clopper_pearson(tally.failures, tally.runs, question.confidence)
        yield f"the interval holds whenever one stops; for {tally.runs} runs fixed beforehand: {_span(fixed)}"
    seeds = dict(tally.first)
    for name, count in tally.signatures:
        other = "" if name in tally.measured else ", not what is measured"
        yield f"  {count} x {name}, first with seed {seeds[name].seed}{other}"
    if len(tally.signatures) > 1 and len(tally.measured) == len(tally.signatures):
        yield "all of these are counted; with --signature GLOB only those that fit"
    if tally.masked:
        yield f"failed in another way, which is no verdict on these: {times(tally.masked)}"
    if tally.untestable:
        yield f"untestable, which is no verdict: {times(tally.untestable)}"
        yield from first_said(evidence)
    if tally.measured:
        yield f"reproduce: {question.reproduce(seeds[tally.measured[0]].seed)}"
    yield from replaced(not_engine_code(evidence))
    yield f"next: {next_step(sampled, question, bool(unproven(sampled, question, evidence)))}"
    yield journal_line(question.journal, sampled.reason, tally.resumed, tally.trials)


def _page(
    sampled: Sampled, question: Question, counted: Sequence[Ended], evidence: Mapping[str, str], pattern: str | None
) -> list[Part]:
    from specdebug.report.html.trials import rate_plot

    tally, claim = sampled.tally, question.claim
    claimed: tuple[float, ...] = (claim.rate,) if isinstance(claim, Below) else ()
    claimed += (claim.below, claim.above) if isinstance(claim, Apart) else ()
    plot = rate_plot(failed(counted, pattern), question.confidence, claimed)
    said = (
        f"The rate so far, run by run. The band is the {percent(question.confidence)} confidence sequence: it "
        "holds the true rate at all runs at once, so one may stop at any. Marks at the lower edge are failures."
    )
    dashed = "" if claim is None else f" Dashed: {claim.text}."
    drawn: Part = Line("No run has come to a verdict.") if plot is None else Plot(plot, said + dashed)
    counts = tally.failures, tally.runs, question.confidence
    fixed = f"for {tally.runs} runs fixed beforehand"
    held = [("holds whenever one stops", anytime_interval(*counts)), (fixed, clopper_pearson(*counts))]
    bad = [one for one in counted if one[1].outcome != "pass"]
    seeds = dict(tally.first)
    signatures = (
        Column("signature", of=lambda one: one[0]),
        Column("times", "right", lambda one: one[1]),
        Column("see it again", of=lambda one: question.reproduce(seeds[one[0]].seed)),
    )
    return [
        *head(list(_failed(tally, question))),
        Section("Answer", list(lines(_told(sampled, question, evidence)))),
        Section("Failure rate", [drawn, table(held, *INTERVALS)]),
        *signatures_section(table(tally.signatures, *signatures), evidence),
        trials_section("Trials that did not pass", bad, TRIALS, note=f"{len(counted) - len(bad)} passed."),
    ]


def _failed(tally: Tally, question: Question) -> Iterator[Failed]:
    """The signatures that are measured, each as a failure."""
    counts, first = dict(tally.signatures), dict(tally.first)
    for name in tally.measured:
        commands = [*shows(question.toggles), question.reproduce(first[name].seed), question.bisect]
        yield Failed(f"{counts[name]} of {tally.runs} runs", name, TO_SIGNATURES, question.toggles, commands)


def failed(counted: Sequence[Ended], pattern: str | None) -> list[bool]:
    """Of every run with a verdict on the failure that is measured, True if it failed so."""
    return [
        result.outcome == "fail"
        for _, result in counted
        if result.outcome == "pass"
        or (result.outcome == "fail" and (pattern is None or fnmatchcase(result.signature or "fail", pattern)))
    ]


def _chip(sampled: Sampled, question: Question) -> Styled:
    tally, holds = sampled.tally, decision(sampled, question.claim)
    if question.claim is not None and holds is None:
        return Styled("undecided", "unknown")
    if question.claim is not None:
        return Styled("the claim holds", "pass") if holds else Styled("the claim is refuted", "fail")
    if tally.failures:
        return Styled(f"{tally.failures} of {tally.runs} failed", "fail")
    return Styled("nothing failed", "pass") if tally.runs else Styled("no run came to a verdict", "unknown")


def next_step(sampled: Sampled, question: Question, unproven: bool) -> str:
    """The next step: a command to run, or what to see to first."""
    tally = sampled.tally
    if sampled.reason in STOPPED:
        return STOPPED[sampled.reason]
    if not tally.runs:
        return f"{NOT_TESTED}: {question.what}"
    if unproven:
        fixes = ",".join(question.reverted)
        counted = f"specdebug flake SCENARIO --revert {fixes}   # there every reverted line counts its runs"
        shows = f"specdebug toggles show {question.reverted[0]}   # names a scenario that runs its lines"
        return f"{counted}; or see that {REVERT_VARIABLE} reaches the engine" if question.command else shows
    if sampled.reason == "max-trials":
        return more_trials(tally.trials)
    if tally.failures:
        return question.bisect
    return "the same command with --claim 'rate<1%'" if question.claim is None else "nothing: the claim is decided"


def unproven(sampled: Sampled, question: Question, evidence: Mapping[str, str]) -> list[str]:
    """Return the reverted fixes of which nothing shows that a line ran, where the result takes them for harmless."""
    tally, claim = sampled.tally, question.claim
    harmless = decision(sampled, claim) is True if claim is not None else tally.runs and not tally.failures
    return [one for one in question.reverted if ran_key(one) not in evidence] if harmless else []


def verdict_line(sampled: Sampled, question: Question, evidence: Mapping[str, str]) -> str:
    """The result in one line."""
    tally, claim = sampled.tally, question.claim
    if doubted := unproven(sampled, question, evidence):
        ran = f"a reverted line of {' and '.join(doubted)} ran"
        return f"unproven: nothing shows that {ran}; {rate_text(tally, question.confidence)}"
    holds = decision(sampled, claim)
    if claim is not None and holds is not None:
        return f"{claim.verdict(holds)} at {percent(question.confidence)}: {rate_text(tally, question.confidence)}"
    why = {
        "enough": "",
        "untestable": "no trial could be tested: ",
        "max-trials": "--max-trials is reached: ",
        "interrupted": "interrupted: ",
        "trouble": "stopped: ",
    }[sampled.reason]
    return ("" if claim is None else "undecided, " if why else "") + why + standing_text(tally, question)


def decision(sampled: Sampled, claim: Claim | None) -> bool | None:
    """Return True if the claim holds, None where it was not decided or none was made."""
    tally = sampled.tally
    return None if claim is None or sampled.reason != "enough" else claim.decided(tally.failures, tally.runs)


def _document(
    sampled: Sampled,
    question: Question,
    exit_code: int,
    reverted: list[str],
    counted: Sequence[Ended],
    evidence: Mapping[str, str],
) -> dict[str, Any]:
    tally, claim = sampled.tally, question.claim
    doubted = unproven(sampled, question, evidence)
    seeds = dict(tally.first)

    def bounds(interval: Interval) -> dict[str, float]:
        return {name: round(value, 6) for name, value in asdict(interval).items()}

    return {
        "specdebug": __version__,
        "what": question.what,
        "reverted": reverted,
        "exit_code": exit_code,
        "reason": "unproven" if doubted else sampled.reason,
        "trouble": None if sampled.trouble is None else str(sampled.trouble),
        "claim": None if claim is None else claim.text,
        "holds": None if doubted else decision(sampled, claim),
        "unproven": doubted,
        "owed": None if claim is None else claim.owed(tally.failures, tally.runs),
        "confidence": question.confidence,
        **plain(tally, "trials resumed runs failures untestable masked"),
        "rate": tally.failures / tally.runs if tally.runs else None,
        "interval": bounds(anytime_interval(tally.failures, tally.runs, question.confidence)),
        "fixed_interval": bounds(clopper_pearson(tally.failures, tally.runs, question.confidence)),
        "signatures": [
            {
                "signature": name,
                "failures": count,
                "measured": name in tally.measured,
                "seed": seeds[name].seed,
                "reproduce": question.reproduce(seeds[name].seed),
                "evidence": evidence.get(name, ""),
            }
            for name, count in tally.signatures
        ],
        "each": [
            {"seed": trial.seed, **plain(result, "outcome signature seconds warm processor_s")}
            for trial, result in counted
        ],
        "not_engine_code": not_engine_code(evidence),
        "next": next_step(sampled, question, bool(doubted)),
        "journal": question.journal,
    }


def _span(interval: Interval) -> str:
    return f"{_percent(interval.low)} to {_percent(interval.high)}"


def _percent(rate: float) -> str:
    """One digit after the point, and two that count below 1%."""
    return f"{100 * rate:.1f}%" if rate >= 0.01 or not rate else f"{100 * rate:.2g}%"
