"""A search for a culprit: its progress and its result for a reader, and the result as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specdebug import __version__
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.journal import not_engine_code
from specdebug.campaign.trials.search import Findings, Standing
from specdebug.patching.hook import REVERT_VARIABLE
from specdebug.patching.toggles import Toggle
from specdebug.report.failed import Failed, head, shows
from specdebug.report.parts import Column, Part, Plot, Report, Section, Style, Styled, lines, plain, table, verdict_of
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
from specdebug.report.words import counted, ended, replaced, shown, some, times
from specdebug.search.posterior import BayesianSearch, Rate

BAR = 24
"""Columns of a full bar."""
MISSED = 0.05
"""Chance to have missed a failure of the rate that is called excluded."""
MAX_UNTESTABLE = 6
ORDERED = {"commits": "the good commit", "releases": "the good release"}
"""Kinds of which a trial has one, and in words the one that is no candidate."""
SIGNATURES = (
    Column("signature", of=lambda one: one.signature),
    Column("times", "right", lambda one: one.failures),
    Column("followed", of=lambda one: "yes" if one.followed else "no"),
)
BELIEF = (
    Column("probability", "right", lambda one: one[0]),
    Column("culprits", of=lambda one: one[1]),
    Column("what they are", of=lambda one: one[2]),
)
_STYLES: dict[str, Style] = {"fail": "fail", "pass": "pass", "other": "unknown", "untestable": "unknown"}
_KEYS = {"failed as followed": "fail", "passed": "pass", "failed in another way": "other", "untestable": "untestable"}
_COUNTED = "specdebug bisect SCENARIO --target sglang==VERSION   # there every reverted line counts its runs"
_UNDECIDED = {
    "stalled": "undecided: nearly every trial that could tell is untestable or fails in another way",
    "untestable": "undecided: no trial could be tested",
    "max-trials": "undecided: --max-trials is reached",
    "interrupted": "interrupted",
    "trouble": "stopped",
    "answered": "undecided",
    "not-tried": "undecided: no reverted line ever ran",
}
_OVER = {
    "toggles": ("toggles", "reverted", "a reverted line ran"),
    "config": ("options", "set", "it has these options"),
    "faults": ("faults", "injected", ""),
    "commits": ("commits", "in", "the code of the commit ran"),
    "releases": ("releases", "in", ""),
}
"""By kind of candidate: how several are called, what is done to one, and what nothing may show to have been done."""


@dataclass(frozen=True)
class Bisection:
    """The subject of a search, in words.

    Attributes:
        over: the kind of candidate: ``toggles``, ``config``, ``faults``, ``commits`` or ``releases``.
        what: the command, as the user wrote it.
        labels: of every candidate, a description.
        names: of every candidate, a short name.
        reproduce: the command that shows the failure with these candidates switched on, and this seed.
        next_step: the advice for these culprits and the signature that was followed.
        how_often: the command that measures how often it fails with nothing switched on.
        takes: ``one`` or ``set``, as many fixes as an engine takes that is not ours; None of any other.
        apart: pairs of candidates that edit one line, and were never switched on together.
        proof: ``proven``; ``waived`` with --no-proof; ``out of reach`` where a command imports nothing that fixes edit.
        left: by fix, why it was no candidate, though the command imports its package.
        at_head: the failure of a command with nothing reverted; None where it has none.
        toggles: every known fix, to be shown if it is a culprit.
        command: it is a command, which has no engine options to set and takes no faults.
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
    proof: str = "proven"
    left: Mapping[str, str] = field(default_factory=dict)
    at_head: str | None = None
    toggles: Sequence[Toggle] = ()
    command: bool = False

    def called(self, culprits: frozenset[str]) -> str:
        """A culprit set in few words."""
        return "+".join(self.names[one] for one in self.ordered(culprits)) or "none of these"

    def titles(self, culprits: frozenset[str]) -> str:
        """The descriptions of a culprit set."""
        return "; ".join(self.labels[one] for one in self.ordered(culprits))

    def ordered(self, chosen: frozenset[str]) -> list[str]:
        """Candidates in the order in which they were given."""
        return [one for one in self.labels if one in chosen]

    def switched(self, trial: Trial) -> str:
        """The candidates that a trial switched on, in few words."""
        done = _OVER[self.over][1]
        if self.over in ORDERED:
            return f"at {self.called(trial.reverted) if trial.reverted else ORDERED[self.over]}"
        if len(trial.reverted) == 1:
            return f"{self.called(trial.reverted)} {done}"
        return f"{len(trial.reverted)} of {len(self.labels)} {done}"


class BisectProgress(TrialsDisplay):
    """The posterior, drawn anew after every trial; elsewhere a line a trial."""

    def __init__(self, stream: IO[str], subject: Bisection) -> None:
        super().__init__(stream, subject.journal)
        self._subject = subject
        self._last = ""

    def counted(self, trial: Trial, result: TrialResult, standing: Standing) -> None:
        """Say what a trial came to and which culprits are now likeliest."""
        self.moved(standing)
        culprits, probability = standing.posterior[0]
        what = f"{ended(result.outcome, result.signature)}, {self._subject.switched(trial)}, {result.seconds:.1f} s"
        self._last = f"trial {trial.number}: {what}"
        self.say(f"{self._last}; likeliest {self._subject.called(culprits)} {probability:.2f}")

    def _draw(self) -> RenderableType:
        standing: Any = self.standing
        if standing is None:
            return Text("starting")
        subject, rates = self._subject, standing.rates
        resumed = f", {standing.resumed} of them from the journal" if standing.resumed else ""
        running = f", {standing.running} running" if standing.running else ""
        followed = f"after {standing.followed}" if standing.followed else "no failure yet"
        told = f"{standing.trials} trials{resumed}{running}, {followed}"
        return Group(
            Text(f"bisect {shown(subject.what)} over {subject.over}: {told}", "bold"),
            posterior_table(standing, subject),
            Text(
                f"fails {rate_text(rates.manifest)} with the culprit, {rate_text(rates.false_failure)} without", "dim"
            ),
            Text(shown(self._last), "dim"),
        )


def posterior_table(standing: Standing, subject: Bisection) -> RichTable:
    """The likeliest culprit sets with a bar each."""
    grid = RichTable.grid(padding=(0, 2), expand=True)
    for width in (len("0.000"), BAR, None):
        grid.add_column(no_wrap=True, overflow="ellipsis", width=width)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # a narrow terminal cuts titles, not numbers
    for culprits, probability in standing.posterior:
        filled = round(probability * BAR)
        bar = Text("█" * filled, "cyan") + Text("░" * (BAR - filled), "dim")
        names, titles = Text(shown(subject.called(culprits))), Text(shown(subject.titles(culprits)), "dim")
        grid.add_row(Text(f"{probability:.3f}"), bar, names, titles)
    return grid


def rate_text(rate: Rate) -> str:
    """``0.31 (0.17 to 0.48)``."""
    return f"{rate.mean:.2f} ({rate.low:.2f} to {rate.high:.2f})"


def bisect_report(
    findings: Findings,
    subject: Bisection,
    exit_code: int,
    trials: Mapping[int, Ended],
    evidence: Mapping[str, str],
    chooser: Callable[[], BayesianSearch],
    pattern: str | None,
) -> Report:
    """A search, whatever came of it.

    Args:
        trials: those in the journal, by number.
        evidence: of every signature, the text that its first trial left; of untestable trials under ``""``.
        chooser: makes a chooser that has seen no trial yet.
        pattern: the signatures to follow, if they were given.
    """
    standing, answer = findings.standing, findings.answer
    every = [trials[number] for number in range(standing.trials)]
    counted = [(dataclasses.replace(trial, reverted=result.in_force(trial)), result) for trial, result in every]
    summary, told = verdict_line(findings, subject), list(_told(findings, subject, evidence))
    verdict = _verdict(findings, subject)
    chip = Styled(findings.reason if findings.reason == "interrupted" else verdict, "unknown")
    if answer is not None:
        called = f"culprit: {subject.called(answer.culprits)}"
        chip = Styled(called if answer.culprits else verdict, verdict_of(exit_code))
    facts = trial_facts(standing, counted, exit_code, subject.journal, evidence)
    return Report(
        command="bisect",
        title=subject.what.rstrip(","),
        summary=summary,
        exit_code=exit_code,
        document=_document(findings, subject, exit_code, evidence),
        parts=list(lines((summary, *told), fold=False)),
        chips=[chip],
        facts={
            "over": f"{subject.over} ({len(subject.labels)} candidates)",
            "trials": facts["trials"],
            "fails with the culprit": rate_text(standing.rates.manifest),
            "without": rate_text(standing.rates.false_failure),
            "signature followed": standing.followed or "none: nothing failed",
            "untestable": str(standing.untestable),
            **facts,
        },
        page=partial(_page, findings, subject, counted, evidence, chooser, pattern),
        seconds=sum(result.seconds for _, result in counted),
    )


def _told(findings: Findings, subject: Bisection, evidence: Mapping[str, str]) -> Iterator[str]:
    """What stands below the verdict."""
    standing = findings.standing
    if findings.answer is None and findings.reason not in ("unproven", "at-head", "not-tried"):
        yield from (f"  {probability:.3f} {subject.called(culprits)}" for culprits, probability in standing.posterior)
    mine, others = (
        ", ".join(f"{one.signature} ({times(one.failures)})" for one in standing.signatures if one.followed is followed)
        for followed in (True, False)
    )
    if standing.followed is not None:
        how = f"; {standing.chosen}" if standing.chosen else ""
        yield f"followed: {mine or f'{standing.followed}, which was not seen'}{how}"
    if others:
        yield f"also seen: {others}; follow another with --signature"
    if standing.untestable:
        where = ""
        kind, at, nothing = "fixes", "with", "none"
        if subject.over in ORDERED:
            kind, at, nothing = subject.over, "at", ORDERED[subject.over]
        if subject.over in ORDERED or subject.takes == "one":
            named = [subject.called(one) if one else nothing for one in findings.untestable]
            more = f" {kind}" if len(named) > MAX_UNTESTABLE else ""
            where = f", {at} {some(named, MAX_UNTESTABLE)}{more}"
        yield f"untestable: {times(standing.untestable)}{where}"
        yield from first_said(evidence)
    if subject.at_head is None and subject.takes == "one":
        yield "one at a time: SGLang's SGLANG_DEBUG_REVERT_PR takes one number; --takes set is for what takes a list"
    else:
        yield from (f"never together, for they edit one line: {' and '.join(pair)}" for pair in subject.apart)
    yield from (f"not tried: {number}, {why}" for number, why in not_tried(findings, subject).items())
    if subject.at_head is None and subject.proof != "proven":
        why = "--no-proof" if subject.proof == "waived" else "the command's Python imports nothing that a fix edits"
        yield f"unproven ({why}): {REVERT_VARIABLE} told the fixes, and nothing shows that a reverted line ran"
    if (command := _reproduce(findings, subject)) is not None:
        yield f"reproduce: {command}"
    yield from replaced(not_engine_code(evidence))
    yield f"next: {next_step(findings, subject)}"
    yield journal_line(subject.journal, findings.reason, standing.resumed, standing.trials)


def not_tried(findings: Findings, subject: Bisection) -> dict[str, str]:
    """The fixes that are neither convicted nor acquitted, by number, and why."""
    return {**subject.left, **findings.not_tried}


def _page(
    findings: Findings,
    subject: Bisection,
    counted: Sequence[Ended],
    evidence: Mapping[str, str],
    chooser: Callable[[], BayesianSearch],
    pattern: str | None,
) -> list[Part]:
    from specdebug.report.html.trials import GRID_ROWS, LINES, history, posterior_bars, posterior_plot, trial_grid

    past = history(counted, chooser, pattern)
    names = [subject.called(culprits) for culprits in past.likeliest]
    belief = [
        (f"{probability:.4f}", subject.called(culprits), subject.titles(culprits))
        for culprits, probability in past.looks[-1][1][: 2 * LINES]
    ]
    bars = posterior_bars([(name, float(probability)) for probability, name, _ in belief[:LINES]])
    plots: list[Part] = [Plot(bars, "The likeliest culprits after the last trial.")]
    if counted:
        keys = [(name, f"c{place}") for place, name in enumerate(names, 1)]
        outcomes = [(words, f"t-{kind}") for words, kind in _KEYS.items()]
        said = "The same after every trial; below, what came of the trials."
        plots.append(Plot(posterior_plot(past, names), said, keys + outcomes))
        tried = [(trial, verdict) for (trial, _), verdict in zip(counted, past.verdicts, strict=True)]
        which = f"the last {GRID_ROWS} of {len(tried)} trials" if len(tried) > GRID_ROWS else "trials"
        said = f"Rows are {which}, columns candidates: filled where the trial tried it, coloured by what came of it."
        plots.append(Plot(trial_grid(tried, subject.names), said, outcomes))
    plots.append(Section("The posterior as a table", [table(belief, *BELIEF)], folded=True))
    heads = (
        Column("#", "right", lambda one: one[0].number),
        Column("outcome", of=lambda one: Styled("other failure" if one[2] == "other" else one[2], _STYLES[one[2]])),
        Column("signature", of=lambda one: one[1].signature),
        Column("switched on", of=lambda one: subject.switched(one[0])),
        Column(
            "candidates", of=lambda one: ", ".join(map(subject.names.__getitem__, subject.ordered(one[0].reverted)))
        ),
        Column("seed", "right", lambda one: one[0].seed),
        Column("time", "right", lambda one: f"{one[1].seconds:.1f} s"),
    )
    rows = [(*one, verdict) for one, verdict in zip(counted, past.verdicts, strict=True)]
    return [
        *head(list(_failed(findings, subject))),
        Section("Answer", list(lines(_told(findings, subject, evidence))), anchor="answer"),
        Section("Posterior", plots),
        *signatures_section(table(findings.standing.signatures, *SIGNATURES), evidence),
        trials_section("Trials", rows, heads),
    ]


def _failed(findings: Findings, subject: Bisection) -> Iterator[Failed]:
    """The failure that was followed, with its culprits if they are known, or the one with nothing reverted."""
    seen = (one.signature for one in findings.standing.signatures if one.followed)
    signature, answer = subject.at_head or next(seen, None), findings.answer
    if signature is None:
        return
    culprits = frozenset[str]() if answer is None else answer.culprits
    name = f"culprit {subject.called(culprits)}" if culprits else "no culprit is named"
    toggles = [each for each in subject.toggles if str(each.pr) in culprits]
    commands = list(
        dict.fromkeys(filter(None, (*shows(toggles), _reproduce(findings, subject), next_step(findings, subject))))
    )
    yield Failed(name, signature, "answer" if subject.at_head else TO_SIGNATURES, toggles, commands)


def next_step(findings: Findings, subject: Bisection) -> str:
    """The next step: a command to run, or what to see to first."""
    answer, standing = findings.answer, findings.standing
    if answer is not None and answer.culprits:
        return subject.next_step(answer.culprits, standing.followed or "*")
    if findings.reason in STOPPED:
        return STOPPED[findings.reason]
    if findings.reason == "at-head":
        return f"specdebug bisect --over commits --good REV -- {subject.what}   # which commit brought it"
    if findings.reason == "not-tried":
        return f"{subject.how_often}   # if it fails at all; see that the job reaches the code that the fixes edit"
    if findings.reason == "max-trials":
        return more_trials(standing.trials)
    if findings.reason in ("untestable", "stalled"):
        others = [one.signature for one in standing.signatures if not one.followed]
        if others and not standing.untestable:
            return f"follow another failure: the same command with --signature '{others[0]}'"
        where = f" ({subject.called(findings.untestable[0])} switched on)" if findings.untestable else ""
        return f"{NOT_TESTED}{where}: {subject.what.rstrip(',')}"
    if standing.signatures:
        return f"{subject.how_often}   # how often it fails with nothing switched on"
    if findings.reason == "unproven" and subject.over == "commits":
        return f"see that it runs the code of the folder it is started in, not an installed package: {subject.what}"
    if findings.reason == "unproven":
        yours = ", or name toggles of yours with --content" if subject.proof == "out of reach" else ""
        return f"{_COUNTED}; or see that the command hands {REVERT_VARIABLE} on to its engine{yours}"
    kinds = ("toggles", "commits") if subject.command else ("toggles", "config", "faults")
    left = " or ".join(kind for kind in kinds if kind != subject.over)
    return f"{subject.how_often}   # if it fails at all; then --over {left}"


def verdict_line(findings: Findings, subject: Bisection) -> str:
    """The answer in one line, or why there is none."""
    standing, answer, rates = findings.standing, findings.answer, findings.standing.rates
    trials, (kinds, _, doubted) = counted(standing.trials, "trial"), _OVER[subject.over]
    if findings.reason == "unproven":
        return f"unproven after {trials}: nothing shows that {doubted}; {_innocent(findings, subject)}"
    if findings.reason == "at-head":
        return f"fails with nothing reverted: {subject.at_head}, whenever it was looked at; no revert is to blame"
    if findings.reason == "not-tried":
        return f"{_UNDECIDED[findings.reason]}, after {trials}"
    if answer is None:
        return f"{_UNDECIDED[findings.reason]}, after {trials}; likeliest so far:"
    probability = f"{min(answer.probability, 0.999):.3f}".rstrip("0")
    after = f"with probability {probability} after {trials}"
    if not answer.culprits:
        tried = len(subject.labels) - len(findings.not_tried)
        return f"no culprit among these {tried} {kinds} {after}; {_innocent(findings, subject)}"
    named = [
        subject.names[one] + (f' "{subject.labels[one]}"' if subject.over not in ("config", "releases") else "")
        for one in subject.ordered(answer.culprits)
    ]
    who = f"culprit {named[0]}" if len(named) == 1 else f"culprits {' and '.join(named)}, only together,"
    if subject.over in ORDERED:
        who = f"first bad {subject.over.removesuffix('s')} {named[0]}"
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
    switched = f"nothing failed, {times(findings.silent)} with {which} of them {_OVER[subject.over][1]}"
    return f"{switched} (a failure as frequent as {bound:.2f} would have shown at {1 - MISSED:.0%})"


def _document(findings: Findings, subject: Bisection, exit_code: int, evidence: Mapping[str, str]) -> dict[str, Any]:
    standing, answer, rates = findings.standing, findings.answer, findings.standing.rates

    def candidates(names: Sequence[str]) -> list[dict[str, str]]:
        return [{"id": one, "label": subject.labels[one]} for one in names]

    def rate(measured: Rate) -> dict[str, float]:
        return {name: round(value, 6) for name, value in dataclasses.asdict(measured).items()}

    return {
        "specdebug": __version__,
        **plain(subject, "over what"),
        "exit_code": exit_code,
        "reason": findings.reason,
        "trouble": None if findings.trouble is None else str(findings.trouble),
        "verdict": _verdict(findings, subject),
        "takes": subject.takes,
        "apart": [list(pair) for pair in subject.apart],
        "culprits": candidates(subject.ordered(answer.culprits if answer else frozenset())),
        "probability": None if answer is None else round(answer.probability, 6),
        **plain(standing, "trials resumed"),
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
        "rates": {"with": rate(rates.manifest), "without": rate(rates.false_failure), "interval": 0.9},
        "posterior": [
            {"culprits": subject.ordered(culprits), "probability": round(probability, 6)}
            for culprits, probability in standing.posterior
        ],
        "candidates": candidates(list(subject.labels)),
        "proof": subject.proof,
        "not_tried": [{"id": one, "why": why} for one, why in not_tried(findings, subject).items()],
        "at_head": subject.at_head,
        "not_engine_code": not_engine_code(evidence),
        "reproduce": _reproduce(findings, subject),
        "next": next_step(findings, subject),
        "journal": subject.journal,
    }


def _reproduce(findings: Findings, subject: Bisection) -> str | None:
    """The command that shows the failure again; None where there is none to see."""
    trial, answer = findings.shown_by, findings.answer
    if trial is None or (answer is not None and not answer.culprits):
        return None
    return subject.reproduce(trial.reverted if answer is None else answer.culprits, trial.seed)


def _verdict(findings: Findings, subject: Bisection) -> str:
    answer = findings.answer
    if answer is None:
        return findings.reason if findings.reason in ("unproven", "at-head", "not-tried") else "undecided"
    if answer.culprits and subject.proof == "out of reach":
        return "unproven"
    return "culprit" if answer.culprits else "no culprit"
