"""A search for a culprit: its progress and its result for a reader, and the result as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdebug import __version__
from specdebug.base.trial import Trial, TrialResult
from specdebug.bisect import Rate
from specdebug.campaign.trials.journal import not_engine_code
from specdebug.campaign.trials.search import Findings, Standing
from specdebug.report.foreign import shown
from specdebug.report.lines import PlainTrials
from specdebug.report.live import LiveDisplay
from specdebug.report.next_steps import after_bisect
from specdebug.report.words import counted, ended, journal_line, replaced, some, times

BAR = 24
"""Columns of a full bar."""

MISSED = 0.05
"""Chance to have missed a failure of the rate that is called excluded."""

MAX_UNTESTABLE = 6
GOOD = "the good commit"
_UNDECIDED = {
    "stalled": "undecided: nearly every trial that could tell is untestable or fails in another way",
    "untestable": "undecided: no trial could be tested",
    "max-trials": "undecided: --max-trials is reached",
    "interrupted": "interrupted",
    "trouble": "stopped",
    "answered": "undecided",
}
_DOUBTED = {
    "toggles": "a reverted line ran",
    "config": "it has these options",
    "commits": "the code of the commit ran",
}
_KINDS = {"toggles": "toggles", "config": "options", "faults": "faults", "commits": "commits"}
_DONE = {"toggles": "reverted", "config": "set", "faults": "injected", "commits": "in"}


@dataclass(frozen=True)
class Bisection:
    """The subject of a search, in words.

    Attributes:
        over: the kind of candidate: ``toggles``, ``config``, ``faults`` or ``commits``.
        what: the command, as the user wrote it.
        labels: of every candidate, a description.
        names: of every candidate, a short name.
        reproduce: the command that shows the failure with these candidates switched on, and this seed.
        next_step: the advice for these culprits and the signature that was followed.
        how_often: the command that measures how often it fails with nothing switched on.
        takes: ``one`` or ``set``, as many fixes as an engine takes that is not ours; None of any other.
        apart: pairs of candidates that edit one line, and were never switched on together.
    """

    over: str
    what: str
    labels: Mapping[str, str]
    names: Mapping[str, str]
    journal: str
    reproduce: Callable[[frozenset[str], int], str]
    next_step: Callable[[frozenset[str], str], str]
    how_often: str
    takes: str | None = None
    apart: Sequence[Sequence[str]] = ()

    def called(self, culprits: frozenset[str]) -> str:
        """A culprit set in few words."""
        return "+".join(self.names[one] for one in self.ordered(culprits)) or "none of these"

    def ordered(self, chosen: frozenset[str]) -> list[str]:
        """Candidates in the order in which they were given."""
        return [one for one in self.labels if one in chosen]


class PlainBisect(PlainTrials):
    """One line a trial."""

    def __init__(self, stream: IO[str], subject: Bisection) -> None:
        super().__init__(stream, subject.journal)
        self._subject = subject

    def counted(self, trial: Trial, result: TrialResult, standing: Standing) -> None:
        """Say what a trial came to and which culprits are now likeliest."""
        self.moved(standing)
        culprits, probability = standing.posterior[0]
        likeliest = f"likeliest {self._subject.called(culprits)} {probability:.2f}"
        self._say(f"trial {trial.number}: {trial_text(trial, result, self._subject)}; {likeliest}")


class LiveBisect(LiveDisplay):
    """The posterior, drawn anew after every trial."""

    def __init__(self, stream: IO[str], subject: Bisection) -> None:
        super().__init__(stream)
        self._subject = subject
        self._standing: Standing | None = None
        self._last = ""

    def moved(self, standing: Standing) -> None:
        """Draw this standing from now on."""
        self._standing = standing

    def counted(self, trial: Trial, result: TrialResult, standing: Standing) -> None:
        """Draw this standing and the trial from now on."""
        self.moved(standing)
        self._last = f"last: {trial_text(trial, result, self._subject)}"

    def _draw(self) -> RenderableType:
        standing = self._standing
        if standing is None:
            return Text("starting")
        fails, without = rate_text(standing.rates.manifest), rate_text(standing.rates.false_failure)
        return Group(
            Text(f"bisect {shown(self._subject.what)} over {self._subject.over}: {progress_text(standing)}", "bold"),
            posterior_table(standing, self._subject),
            Text(f"fails {fails} with the culprit, {without} without", "dim"),
            Text(shown(self._last), "dim"),
        )


def bisect_progress(stream: IO[str], subject: Bisection) -> PlainBisect | LiveBisect:
    """The display that suits the stream."""
    return LiveBisect(stream, subject) if stream.isatty() else PlainBisect(stream, subject)


def posterior_table(standing: Standing, subject: Bisection) -> Table:
    """The likeliest culprit sets with a bar each."""
    table = Table.grid(padding=(0, 2), expand=True)
    for width in (len("0.000"), BAR, None):
        table.add_column(no_wrap=True, overflow="ellipsis", width=width)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # a narrow terminal cuts titles, not numbers
    for culprits, probability in standing.posterior:
        filled = round(probability * BAR)
        bar = Text("█" * filled, "cyan") + Text("░" * (BAR - filled), "dim")
        titles = "; ".join(subject.labels[one] for one in subject.ordered(culprits))
        names = Text(shown(subject.called(culprits)))
        table.add_row(Text(f"{probability:.3f}"), bar, names, Text(shown(titles), "dim"))
    return table


def progress_text(standing: Standing) -> str:
    """The number of trials, and the signature that they are after."""
    resumed = f", {standing.resumed} of them from the journal" if standing.resumed else ""
    running = f", {standing.running} running" if standing.running else ""
    followed = f"after {standing.followed}" if standing.followed else "no failure yet"
    return f"{standing.trials} trials{resumed}{running}, {followed}"


def trial_text(trial: Trial, result: TrialResult, subject: Bisection) -> str:
    """A trial in few words: ``fail exit:1, 3 of 10 reverted, 0.2 s``."""
    return f"{ended(result.outcome, result.signature)}, {switched_text(trial, subject)}, {result.seconds:.1f} s"


def switched_text(trial: Trial, subject: Bisection) -> str:
    """The candidates that a trial switched on, in few words."""
    if subject.over == "commits":
        return f"at {subject.called(trial.reverted) if trial.reverted else GOOD}"
    if len(trial.reverted) == 1:
        return f"{subject.called(trial.reverted)} {_DONE[subject.over]}"
    return f"{len(trial.reverted)} of {len(subject.labels)} {_DONE[subject.over]}"


def rate_text(rate: Rate) -> str:
    """``0.31 (0.17 to 0.48)``."""
    return f"{rate.mean:.2f} ({rate.low:.2f} to {rate.high:.2f})"


def findings_text(findings: Findings, subject: Bisection, evidence: Mapping[str, str]) -> str:
    """The result in lines, none of them folded: some are to be copied.

    ``evidence``: of every signature, the text that its first trial left; of untestable trials under ``""``.
    """
    standing, answer = findings.standing, findings.answer
    lines = [verdict_line(findings, subject)]
    if answer is None and findings.reason != "unproven":
        lines += [f"  {probability:.3f} {subject.called(culprits)}" for culprits, probability in standing.posterior]
    lines += _seen(findings, subject, evidence)
    lines += _never_together(subject)
    if (command := _reproduce(findings, subject)) is not None:
        lines.append(f"reproduce: {command}")
    lines += replaced(not_engine_code(evidence))
    lines.append(f"next: {after_bisect(findings, subject)}")
    lines.append(journal_line(subject.journal, findings.reason, standing.resumed, standing.trials))
    return "\n".join(map(shown, lines))


def verdict_line(findings: Findings, subject: Bisection) -> str:
    """The answer in one line, or why there is none."""
    standing, answer = findings.standing, findings.answer
    trials = counted(standing.trials, "trial")
    if findings.reason == "unproven":
        doubted = f"nothing shows that {_DOUBTED[subject.over]}"
        return f"unproven after {trials}: {doubted}; {_innocent(findings, subject)}"
    if answer is None:
        return f"{_UNDECIDED[findings.reason]}, after {trials}; likeliest so far:"
    probability = f"{min(answer.probability, 0.999):.3f}".rstrip("0")
    after = f"with probability {probability} after {trials}"
    rates = standing.rates
    if not answer.culprits:
        among = f"no culprit among these {len(subject.labels)} {_KINDS[subject.over]} {after}"
        return f"{among}; {_innocent(findings, subject)}"
    named = [
        subject.names[one] + (f' "{subject.labels[one]}"' if subject.over != "config" else "")
        for one in subject.ordered(answer.culprits)
    ]
    if subject.over == "commits":
        who = f"first bad commit {named[0]}"
    else:
        who = f"culprit {named[0]}" if len(named) == 1 else f"culprits {' and '.join(named)}, only together,"
    it = "it" if len(named) == 1 else "them"
    often = f"fails {rate_text(rates.manifest)} of the time with {it}, {rate_text(rates.false_failure)} without"
    return f"{who} {after}; {often}"


def _innocent(findings: Findings, subject: Bisection) -> str:
    """Say how it went that no candidate is to blame, if they were switched on."""
    standing = findings.standing
    if standing.signatures or not findings.silent:
        return f"fails {rate_text(standing.rates.false_failure)} of the time whatever is switched"
    bound = 1 - MISSED ** (1 / findings.silent)
    which = "each" if subject.apart or subject.takes == "one" else "all"
    switched = f"nothing failed, {times(findings.silent)} with {which} of them {_DONE[subject.over]}"
    return f"{switched} (a failure as frequent as {bound:.2f} would have shown at {1 - MISSED:.0%})"


def _never_together(subject: Bisection) -> list[str]:
    """The candidates that no trial switched on together, and why."""
    if subject.takes == "one":
        return ["one at a time: SGLang's SGLANG_DEBUG_REVERT_PR takes one number; --takes set is for what takes a list"]
    return [f"never together, for they edit one line: {' and '.join(pair)}" for pair in subject.apart]


def bisect_document(
    findings: Findings, subject: Bisection, exit_code: int, evidence: Mapping[str, str]
) -> dict[str, Any]:
    """A search as plain data. ``evidence`` is that of :func:`findings_text`."""
    standing, answer, rates = findings.standing, findings.answer, findings.standing.rates
    return {
        "specdebug": __version__,
        "over": subject.over,
        "what": subject.what,
        "exit_code": exit_code,
        "reason": findings.reason,
        "trouble": None if findings.trouble is None else str(findings.trouble),
        "verdict": _verdict(findings),
        "takes": subject.takes,
        "apart": [list(pair) for pair in subject.apart],
        "culprits": [_candidate(one, subject) for one in subject.ordered(answer.culprits if answer else frozenset())],
        "probability": None if answer is None else round(answer.probability, 6),
        "trials": standing.trials,
        "resumed": standing.resumed,
        "untestable": {
            "trials": standing.untestable,
            "switched": [subject.ordered(one) for one in findings.untestable],
            "evidence": evidence.get("", ""),
        },
        "signature": standing.followed,
        "signature_chosen": standing.chosen,
        "signatures": [
            {**dataclasses.asdict(one), "evidence": evidence.get(one.signature, "")} for one in standing.signatures
        ],
        "rates": {"with": _rate(rates.manifest), "without": _rate(rates.false_failure), "interval": 0.9},
        "posterior": [
            {"culprits": subject.ordered(culprits), "probability": round(probability, 6)}
            for culprits, probability in standing.posterior
        ],
        "candidates": [_candidate(one, subject) for one in subject.labels],
        "not_engine_code": not_engine_code(evidence),
        "reproduce": _reproduce(findings, subject),
        "next": after_bisect(findings, subject),
        "journal": subject.journal,
    }


def _seen(findings: Findings, subject: Bisection, evidence: Mapping[str, str]) -> list[str]:
    """The signature that was followed, and whatever else came up."""
    standing = findings.standing
    lines = []
    mine, others = (
        ", ".join(f"{one.signature} ({times(one.failures)})" for one in standing.signatures if one.followed is followed)
        for followed in (True, False)
    )
    if standing.followed is not None:
        how = f"; {standing.chosen}" if standing.chosen else ""
        lines.append(f"followed: {mine or f'{standing.followed}, which was not seen'}{how}")
    if others:
        lines.append(f"also seen: {others}; follow another with --signature")
    if standing.untestable:
        where = ""
        kind, at, nothing = ("commits", "at", GOOD) if subject.over == "commits" else ("fixes", "with", "none")
        if subject.over == "commits" or subject.takes == "one":
            named = [subject.called(one) if one else nothing for one in findings.untestable]
            more = f" {kind}" if len(named) > MAX_UNTESTABLE else ""
            where = f", {at} {some(named, MAX_UNTESTABLE)}{more}"
        lines.append(f"untestable: {times(standing.untestable)}{where}")
        if evidence.get(""):
            lines.append(f"  the first said: {evidence[''].strip().splitlines()[-1]}")
    return lines


def _reproduce(findings: Findings, subject: Bisection) -> str | None:
    """The command that shows the failure again; None where there is none to see."""
    trial, answer = findings.shown_by, findings.answer
    if trial is None or (answer is not None and not answer.culprits):
        return None
    return subject.reproduce(trial.reverted if answer is None else answer.culprits, trial.seed)


def _verdict(findings: Findings) -> str:
    answer = findings.answer
    if answer is None:
        return "unproven" if findings.reason == "unproven" else "undecided"
    return "culprit" if answer.culprits else "no culprit"


def _rate(rate: Rate) -> dict[str, float]:
    return {name: round(value, 6) for name, value in dataclasses.asdict(rate).items()}


def _candidate(one: str, subject: Bisection) -> dict[str, str]:
    return {"id": one, "label": subject.labels[one]}
