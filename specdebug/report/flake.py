"""A failure rate for a reader: while it is measured, what it came to, and the same as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdebug import __version__
from specdebug.report.foreign import shown
from specdebug.report.lines import PlainLines
from specdebug.report.live import LiveDisplay
from specdebug.report.words import journal_line, times
from specdebug.stats.claims import Claim, percent
from specdebug.stats.clean import clean_bound
from specdebug.stats.intervals import Interval, anytime_interval, clopper_pearson
from specdebug.trials.sampling import Sampled, Tally
from specdebug.trials.trial import Trial, TrialResult

EVERY = 20
"""Plain output: runs between two lines, besides one for each failure."""

MAX_SIGNATURES = 8


@dataclass(frozen=True)
class Question:
    """The question, in words.

    Attributes:
        what: what is run, as the user wrote it.
        claim: what is to be decided; None to measure the rate.
        journal: where the trials are kept.
        reproduce: the command that runs it with this seed.
    """

    what: str
    claim: Claim | None
    confidence: float
    journal: str
    reproduce: Callable[[int], str]


class PlainFlake(PlainLines):
    """A line for each failure, and one every few runs."""

    def __init__(self, stream: IO[str], question: Question) -> None:
        super().__init__(stream)
        self._question = question
        self._resumed = False

    def moved(self, tally: Tally) -> None:
        """Says once how many trials the journal held."""
        if tally.resumed and not self._resumed:
            self._resumed = True
            self._say(f"resumed: {tally.resumed} trials are in {self._question.journal}")

    def counted(self, trial: Trial, result: TrialResult, tally: Tally) -> None:
        """A trial that did not pass, or the standing once in a while."""
        self.moved(tally)
        if result.outcome != "pass":
            what = f"{result.outcome} {result.signature}" if result.signature else result.outcome
            self._say(f"trial {trial.number}: {what}, seed {trial.seed}; {standing_text(tally, self._question)}")
        elif tally.trials % EVERY == 0:
            self._say(standing_text(tally, self._question))


class LiveFlake(LiveDisplay):
    """The standing, drawn anew several times a second."""

    def __init__(self, stream: IO[str], question: Question) -> None:
        super().__init__(stream)
        self._question = question
        self._tally = Tally()

    def moved(self, tally: Tally) -> None:
        """Draws from now on what is known now."""
        self._tally = tally

    def counted(self, trial: Trial, result: TrialResult, tally: Tally) -> None:
        """The same."""
        self._tally = tally

    def _draw(self) -> RenderableType:
        tally = self._tally
        lines: list[RenderableType] = [Text(f"flake {shown(self._question.what)}: {tally.running} running", "bold")]
        lines.append(Text(standing_text(tally, self._question)))
        table = Table.grid(padding=(0, 2))
        for name, count in tally.signatures[:MAX_SIGNATURES]:
            table.add_row(Text(str(count), "red", justify="right"), Text(shown(name)))
        return Group(*lines, table)


def flake_progress(stream: IO[str], question: Question) -> PlainFlake | LiveFlake:
    """The display that suits the stream."""
    return LiveFlake(stream, question) if stream.isatty() else PlainFlake(stream, question)


def standing_text(tally: Tally, question: Question) -> str:
    """``3 of 40 failed: 7.5%, 95% interval 1.2% to 23.7%``, and what the claim still takes."""
    text = rate_text(tally, question.confidence)
    if question.claim is None or not tally.runs or question.claim.decided(tally.failures, tally.runs) is not None:
        return text
    return f"{text}; {_owed(tally, question.claim)}"


def rate_text(tally: Tally, confidence: float) -> str:
    """Failures, and the rate with its interval."""
    counts = f"{tally.failures} of {tally.runs} failed"
    if not tally.runs:
        return "no run has come to a verdict"
    if not tally.failures:
        return f"{counts}: rate < {_percent(clean_bound(tally.runs, confidence))} at {percent(confidence)}"
    interval = _interval(tally, confidence)
    return f"{counts}: rate {_percent(tally.failures / tally.runs)}, {percent(confidence)} interval {_span(interval)}"


def sampled_text(sampled: Sampled, question: Question, evidence: Mapping[str, str]) -> str:
    """Verdict, what else was seen, how to see it again. No line is folded: some are to be copied.

    ``evidence``: of every signature, what its first trial left; of untestable trials under ``""``.
    """
    tally = sampled.tally
    lines = [verdict_line(sampled, question)]
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
    lines.append(journal_line(question.journal, sampled.reason, tally.resumed, tally.trials))
    return "\n".join(map(shown, lines))


def verdict_line(sampled: Sampled, question: Question) -> str:
    """Return what it came to, in one line."""
    tally, claim = sampled.tally, question.claim
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
    """Return whether the claim holds, None where it was not decided or none was made."""
    tally = sampled.tally
    return None if claim is None or sampled.reason != "enough" else claim.decided(tally.failures, tally.runs)


def flake_document(
    sampled: Sampled, question: Question, exit_code: int, reverted: list[str], evidence: Mapping[str, str]
) -> dict[str, Any]:
    """A measurement as plain data. ``evidence``: of every signature, what its first trial left."""
    tally, claim = sampled.tally, question.claim
    holds, seeds = decision(sampled, claim), dict(tally.first)
    return {
        "specdebug": __version__,
        "what": question.what,
        "reverted": reverted,
        "exit_code": exit_code,
        "reason": sampled.reason,
        "trouble": None if sampled.trouble is None else str(sampled.trouble),
        "claim": None if claim is None else claim.text,
        "holds": holds,
        "owed": None if claim is None else claim.owed(tally.failures, tally.runs),
        "confidence": question.confidence,
        "trials": tally.trials,
        "resumed": tally.resumed,
        "runs": tally.runs,
        "failures": tally.failures,
        "untestable": tally.untestable,
        "masked": tally.masked,
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
        "journal": question.journal,
    }


def _owed(tally: Tally, claim: Claim) -> str:
    owed = claim.owed(tally.failures, tally.runs)
    runs = "1 more clean run is" if owed == 1 else f"{owed} more clean runs are"
    return f"{runs} owed before `{claim.text.partition(' or ')[0]}` can be claimed"


def _interval(tally: Tally, confidence: float) -> Interval:
    return anytime_interval(tally.failures, tally.runs, confidence)


def _span(interval: Interval) -> str:
    return f"{_percent(interval.low)} to {_percent(interval.high)}"


def _plain(interval: Interval) -> dict[str, float]:
    return {"low": round(interval.low, 6), "high": round(interval.high, 6)}


def _percent(rate: float) -> str:
    """One digit after the point, and two that count below 1%."""
    return f"{100 * rate:.1f}%" if rate >= 0.01 or not rate else f"{100 * rate:.2g}%"
