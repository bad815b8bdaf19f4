"""A search for the smallest scenario: its progress and its result for a reader, and the result as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from specdebug import __version__
from specdebug.base.trial import TrialResult
from specdebug.patching.toggles import Toggle
from specdebug.report.failed import Failed, head, shows
from specdebug.report.parts import Part, Report, Section, Styled, lines, plain, verdict_of
from specdebug.report.progress import PlainLines
from specdebug.report.trials import STOPPED, journal_line, more_trials
from specdebug.report.words import counted, replaced, times
from specdebug.search.minimise import MinimiseWatcher, StageResult, Summary, rarer

NUMBERS = "numbers"
"""The beginning of the titles of stages that make numbers smaller."""


@dataclass(frozen=True)
class Minimisation:
    """The scenario that is made smaller, in words.

    Attributes:
        what: the scenario and its options, as the user wrote them.
        requests: the number of requests (or conversations) before.
        output: the file that is written.
        confidence: the confidence of what is said to be needed.
        toggles: the fixes that every trial reverts.
        not_engine_code: what was not the engine's own code in any trial.
    """

    what: str
    requests: int
    output: str
    journal: str
    confidence: float
    toggles: Sequence[Toggle] = ()
    not_engine_code: Sequence[str] = ()


class MinimiseProgress(PlainLines, MinimiseWatcher):
    """One line a trial."""

    def opening(self, seen: TrialResult, failures: int, trials: int) -> None:
        """A trial of the whole scenario."""
        self.say(f"trial {trials}: {_seen(seen)} with everything; {times(failures)} so far")

    def tried(
        self, title: str, gone: int, size: int, seen: TrialResult, failed: bool, removed: int, trials: int
    ) -> None:
        """A trial of a smaller one."""
        verb = "made smaller" if title.startswith(NUMBERS) else "gone"
        also = "" if failed or seen.signature is None else ", not what is followed"
        self.say(f"trial {trials}: {title}: {_seen(seen)}{also} with {gone} of {size} {verb}; {removed} superfluous")

    def ended(self, step: StageResult) -> None:
        """A stage is over."""
        said = f"; rarer than the whole: what is left {rate_text(*step.left)} with fresh seeds" if step.rarer else ""
        self.say(f"{step.title}: {len(step.removed)} of {len(step.removed) + len(step.kept)} were superfluous{said}")

    def closing(self, seen: TrialResult, failures: int, trials: int) -> None:
        """A trial of the smallest scenario, at the end."""
        self.say(f"what is left: {_seen(seen)}; {times(failures)} of {trials}")


def minimise_report(summary: Summary[Any], subject: Minimisation, exit_code: int) -> Report:
    """A search for the smallest scenario, whatever came of it."""
    said = headline(summary, subject)
    return Report(
        command="minimise",
        title=subject.what,
        summary=said,
        exit_code=exit_code,
        document=_document(summary, subject, exit_code),
        parts=list(lines((said, *_told(summary, subject)), fold=False)),
        chips=[Styled("the smallest" if exit_code == 0 else "not known to be the smallest", verdict_of(exit_code))],
        page=partial(_page, summary, subject),
    )


def _page(summary: Summary[Any], subject: Minimisation) -> list[Part]:
    failures = []
    if summary.seeds and summary.followed:
        commands = [*shows(subject.toggles), f"specdebug replay {subject.output}", next_step(summary, subject)]
        often = rate_text(*(summary.left if summary.left[1] else summary.whole))
        failures = [Failed(often, summary.followed, "answer", subject.toggles, commands)]
    return [*head(failures), Section("Answer", list(lines(_told(summary, subject))), anchor="answer")]


def _told(summary: Summary[Any], subject: Minimisation) -> Iterator[str]:
    """The parts needed, other failures, the command to reproduce it."""
    if summary.reason != "silent":
        whole, left = rate_text(*summary.whole), rate_text(*summary.left)
        if rarer(summary.left, summary.whole):
            yield "rarer than the whole: some seeds fail with everything and not with what is left"
        yield f"signature {summary.followed}: the whole {whole}, what is left {left}"
        yield from needed_lines(summary, subject)
    if summary.others:
        others = (f"{name} ({times(count)})" for name, count in summary.others)
        yield f"also seen on the way: {', '.join(others)}"
    if summary.seeds:
        yield f"written: {subject.output}"
        yield f"reproduce: specdebug replay {subject.output}"
    yield from replaced(subject.not_engine_code)
    yield f"next: {next_step(summary, subject)}"
    yield journal_line(subject.journal, summary.reason, summary.resumed, summary.trials)


def next_step(summary: Summary[Any], subject: Minimisation) -> str:
    """The next step: a command to run, or what to see to first."""
    if summary.reason in STOPPED:
        return STOPPED[summary.reason]
    if summary.reason == "silent":
        return f"specdebug flake {subject.what}   # how often it fails; a rare failure needs --max-trials"
    if summary.reason == "max-trials":
        return more_trials(summary.trials)
    return f"specdebug bundle {subject.output} -o small.specdebug   # to hand it on"


def headline(summary: Summary[Any], subject: Minimisation) -> str:
    """The result in one line."""
    trials = counted(summary.trials, "trial")
    parts = [f"{step.trials} of them for the requests" for step in summary.steps[:1]]
    if summary.resumed:
        parts.append(f"{summary.resumed} of them from the journal")
    if parts:
        trials += f" ({', '.join(parts)})"
    if summary.reason == "silent":
        followed = f" with {summary.followed}" if summary.followed else ""
        return f"{subject.what} did not fail{followed} in {trials}; there is nothing to make smaller"
    size = f"{subject.requests} requests became {_requests_left(summary, subject)}"
    if summary.reason == "done":
        return f"{size} after {trials}"
    why = {"max-trials": "--max-trials is reached", "interrupted": "interrupted", "trouble": "stopped"}[summary.reason]
    return f"{size}, not yet the smallest: {why} after {trials}"


def needed_lines(summary: Summary[Any], subject: Minimisation) -> list[str]:
    """The parts that are needed, stage by stage, and those of which it is not known yet."""
    told: list[str] = []
    smaller: dict[str, tuple[str, str]] = {}
    for step in summary.steps:
        if step.title.startswith(NUMBERS):
            for change in step.removed:  # ``a 9 -> 5`` and ``a 5 -> 3`` are ``a 9 -> 3``
                label, _, after = change.rpartition(" -> ")
                name, _, before = label.rpartition(" ")
                smaller[name] = (smaller.get(name, (before,))[0], after)
            continue
        if sure := [label for label in step.kept if label not in step.unconfirmed]:
            told.append(f"needed at {subject.confidence:.0%}: {', '.join(sure)}")
        if step.unconfirmed:
            told.append(f"not known to be needed: {', '.join(step.unconfirmed)}")
    if smaller:
        told.append(f"smaller: {', '.join(f'{name} {one} -> {other}' for name, (one, other) in smaller.items())}")
    return told


def rate_text(failures: int, trials: int) -> str:
    """``fails 5 of 17 times``."""
    return f"fails {failures} of {trials} times" if trials else "not measured"


def _document(summary: Summary[Any], subject: Minimisation, exit_code: int) -> dict[str, Any]:
    return {
        "specdebug": __version__,
        "what": subject.what,
        "exit_code": exit_code,
        "reason": summary.reason,
        "trouble": None if summary.trouble is None else str(summary.trouble),
        "signature": summary.followed,
        "others": [{"signature": name, "failures": count} for name, count in summary.others],
        "requests": {"before": subject.requests, "after": _requests_left(summary, subject)},
        "whole": dict(zip(("failures", "trials"), summary.whole, strict=True)),
        "smallest": dict(zip(("failures", "trials"), summary.left, strict=True)),
        "seeds": list(summary.seeds),
        "steps": [plain(step, "title trials removed kept unconfirmed") for step in summary.steps],
        **plain(summary, "trials resumed"),
        "output": subject.output if summary.seeds else None,
        "not_engine_code": list(subject.not_engine_code),
        "next": next_step(summary, subject),
        "journal": subject.journal,
    }


def _requests_left(summary: Summary[Any], subject: Minimisation) -> int:
    return len(summary.steps[0].kept) if summary.steps else subject.requests


def _seen(seen: TrialResult) -> str:
    return f"fail {seen.signature}" if seen.signature else "no failure"
