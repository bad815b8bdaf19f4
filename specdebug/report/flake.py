"""A failure rate: its measurement and its result for a reader, and the result as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdebug import __version__
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.journal import not_engine_code, ran_key
from specdebug.campaign.trials.sampling import Sampled, Tally
from specdebug.report.foreign import shown
from specdebug.report.lines import PlainTrials
from specdebug.report.live import LiveDisplay
from specdebug.report.next_steps import after_flake
from specdebug.report.words import ended, journal_line, replaced, times
from specdebug.stats.claims import Claim, percent
from specdebug.stats.clean import clean_bound
from specdebug.stats.intervals import Interval, anytime_interval, clopper_pearson

EVERY = 20
"""Plain output: runs between two lines, besides one for each failure."""

MAX_SIGNATURES = 8
COUNTS = ("trials", "resumed", "runs", "failures", "untestable", "masked")
"""The counts of a tally that the document has."""


@dataclass(frozen=True)
class Question:
    """The question, in words.

    Attributes:
        what: the command, as the user wrote it.
        claim: the claim to be decided; None to measure the rate.
        reproduce: the command that runs it with this seed.
        bisect: the command to run where it fails, with a word on what that finds.
        reverted: the fixes that every trial is to revert.
        command: it is a command, of which nothing shows that it reverts them.
    """

    what: str
    claim: Claim | None
    confidence: float
    journal: str
    reproduce: Callable[[int], str]
    bisect: str
    reverted: Sequence[str] = ()
    command: bool = False


class PlainFlake(PlainTrials):
    """A line for each failure, and one every few runs."""

    def __init__(self, stream: IO[str], question: Question) -> None:
        super().__init__(stream, question.journal)
        self._question = question

    def counted(self, trial: Trial, result: TrialResult, tally: Tally) -> None:
        """Say that a trial did not pass, or the standing once in a while."""
        self.moved(tally)
        standing = standing_text(tally, self._question)
        if result.outcome != "pass":
            what = ended(result.outcome, result.signature)
            self._say(f"trial {trial.number}: {what}, seed {trial.seed}; {standing}")
        elif tally.trials % EVERY == 0:
            self._say(standing)


class LiveFlake(LiveDisplay):
    """The standing, drawn anew several times a second."""

    def __init__(self, stream: IO[str], question: Question) -> None:
        super().__init__(stream)
        self._question = question
        self._tally = Tally()

    def moved(self, tally: Tally) -> None:
        """Draw this tally from now on."""
        self._tally = tally

    def counted(self, trial: Trial, result: TrialResult, tally: Tally) -> None:
        """Draw this tally from now on."""
        self.moved(tally)

    def _draw(self) -> RenderableType:
        tally = self._tally
        head = Text(f"flake {shown(self._question.what)}: {tally.running} running", "bold")
        table = Table.grid(padding=(0, 2))
        for name, count in tally.signatures[:MAX_SIGNATURES]:
            table.add_row(Text(str(count), "red", justify="right"), Text(shown(name)))
        return Group(head, Text(standing_text(tally, self._question)), table)


def flake_progress(stream: IO[str], question: Question) -> PlainFlake | LiveFlake:
    """The display that suits the stream."""
    return LiveFlake(stream, question) if stream.isatty() else PlainFlake(stream, question)


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


def sampled_text(sampled: Sampled, question: Question, evidence: Mapping[str, str]) -> str:
    """The result in lines, none of them folded: some are to be copied.

    ``evidence``: of every signature, the text that its first trial left; of untestable trials under ``""``.
    """
    tally = sampled.tally
    lines = [verdict_line(sampled, question, evidence)]
    if tally.failures:
        fixed = clopper_pearson(tally.failures, tally.runs, question.confidence)
        lines.append(f"the interval holds whenever one stops; for {tally.runs} runs fixed beforehand: {_span(fixed)}")
    seeds = dict(tally.first)
    for name, count in tally.signatures:
        other = "" if name in tally.measured else ", not what is measured"
        lines.append(f"  {count} x {name}, first with seed {seeds[name].seed}{other}")
    if len(tally.signatures) > 1 and len(tally.measured) == len(tally.signatures):
        lines.append("all of these are counted; with --signature GLOB only those that fit")
    if tally.masked:
        lines.append(f"failed in another way, which is no verdict on these: {times(tally.masked)}")
    if tally.untestable:
        lines.append(f"untestable, which is no verdict: {times(tally.untestable)}")
        if said := evidence.get("", "").strip():
            lines.append(f"  the first said: {said.splitlines()[-1]}")
    if tally.measured:
        lines.append(f"reproduce: {question.reproduce(seeds[tally.measured[0]].seed)}")
    lines += replaced(not_engine_code(evidence))
    doubted = bool(unproven(sampled, question, evidence))
    lines.append(f"next: {after_flake(sampled, question, doubted)}")
    lines.append(journal_line(question.journal, sampled.reason, tally.resumed, tally.trials))
    return "\n".join(map(shown, lines))


def unproven(sampled: Sampled, question: Question, evidence: Mapping[str, str]) -> list[str]:
    """Return the reverted fixes of which nothing shows that a line ran, where the result takes them for harmless."""
    tally, claim = sampled.tally, question.claim
    harmless = decision(sampled, claim) is True if claim is not None else tally.runs and not tally.failures
    return [one for one in question.reverted if ran_key(one) not in evidence] if harmless else []


def verdict_line(sampled: Sampled, question: Question, evidence: Mapping[str, str]) -> str:
    """The result in one line."""
    tally, claim = sampled.tally, question.claim
    if doubted := unproven(sampled, question, evidence):
        lines = f"a reverted line of {' and '.join(doubted)} ran"
        return f"unproven: nothing shows that {lines}; {rate_text(tally, question.confidence)}"
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


def flake_document(
    sampled: Sampled, question: Question, exit_code: int, reverted: list[str], evidence: Mapping[str, str]
) -> dict[str, Any]:
    """A measurement as plain data. ``evidence`` is that of :func:`sampled_text`."""
    tally, claim = sampled.tally, question.claim
    doubted = unproven(sampled, question, evidence)
    seeds = dict(tally.first)
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
        **{name: getattr(tally, name) for name in COUNTS},
        "rate": tally.failures / tally.runs if tally.runs else None,
        "interval": _plain(anytime_interval(tally.failures, tally.runs, question.confidence)),
        "fixed_interval": _plain(clopper_pearson(tally.failures, tally.runs, question.confidence)),
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
        "not_engine_code": not_engine_code(evidence),
        "next": after_flake(sampled, question, bool(doubted)),
        "journal": question.journal,
    }


def _span(interval: Interval) -> str:
    return f"{_percent(interval.low)} to {_percent(interval.high)}"


def _plain(interval: Interval) -> dict[str, float]:
    return {name: round(value, 6) for name, value in asdict(interval).items()}


def _percent(rate: float) -> str:
    """One digit after the point, and two that count below 1%."""
    return f"{100 * rate:.1f}%" if rate >= 0.01 or not rate else f"{100 * rate:.2g}%"
