"""A search for the smallest scenario, for a reader: how it goes, what is left, and the same as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdebug import __version__
from specdebug.minimise import Seen, StageResult, Summary
from specdebug.report.foreign import shown
from specdebug.report.lines import PlainLines
from specdebug.report.words import journal_line, times

NUMBERS = "numbers"
"""The beginning of the titles of stages that make numbers smaller."""


@dataclass(frozen=True)
class Minimisation:
    """The scenario that is made smaller, in words.

    Attributes:
        what: the scenario and its options, as the user wrote them.
        requests: how many requests (or conversations) there were.
        output: the file that is written.
        journal: where the trials are kept.
        confidence: of what is said to be needed.
    """

    what: str
    requests: int
    output: str
    journal: str
    confidence: float


class MinimiseProgress(PlainLines):
    """One line a trial."""

    def opening(self, seen: Seen, failures: int, trials: int) -> None:
        """A trial of the whole scenario."""
        self._say(f"trial {trials}: {_seen(seen)} with everything; {times(failures)} so far")

    def tried(self, title: str, gone: int, size: int, seen: Seen, failed: bool, removed: int, trials: int) -> None:
        """A trial of a smaller one."""
        verb = "made smaller" if title.startswith(NUMBERS) else "gone"
        also = "" if failed or seen.signature is None else ", not what is followed"
        self._say(f"trial {trials}: {title}: {_seen(seen)}{also} with {gone} of {size} {verb}; {removed} superfluous")

    def ended(self, step: StageResult) -> None:
        """A stage is over."""
        self._say(f"{step.title}: {len(step.removed)} of {len(step.removed) + len(step.kept)} were superfluous")

    def closing(self, seen: Seen, failures: int, trials: int) -> None:
        """A trial of what is left, at the end."""
        self._say(f"what is left: {_seen(seen)}; {times(failures)} of {trials}")


def summary_text(summary: Summary[Any], subject: Minimisation) -> str:
    """Return what is left, how sure that is, how to see it, what else was seen."""
    lines = [headline(summary, subject)]
    if summary.reason != "silent":
        lines.append(f"signature {summary.followed}: the whole {rate_text(*summary.whole)}, {_left(summary)}")
        lines += needed_lines(summary, subject)
    if summary.others:
        others = (f"{name} ({times(count)})" for name, count in summary.others)
        lines.append(f"also seen on the way: {', '.join(others)}")
    if summary.seeds:
        lines.append(f"written: {subject.output}")
        lines.append(f"reproduce: specdebug replay {subject.output}")
    lines.append(journal_line(subject.journal, summary.reason, summary.resumed, summary.trials))
    return "\n".join(map(shown, lines))


def headline(summary: Summary[Any], subject: Minimisation) -> str:
    """The result in one line."""
    trials = f"{summary.trials} {'trial' if summary.trials == 1 else 'trials'}"
    parts = [f"{step.trials} of them for the requests" for step in summary.steps[:1]]
    if summary.resumed:
        parts.append(f"{summary.resumed} of them from the journal")
    if parts:
        trials += f" ({', '.join(parts)})"
    if summary.reason == "silent":
        followed = f" with {summary.followed}" if summary.followed else ""
        return f"{subject.what} did not fail{followed} in {trials}; there is nothing to make smaller"
    size = f"{subject.requests} requests became {_requests_left(summary, subject)}"
    why = {
        "done": f"{size} after {trials}",
        "max-trials": f"{size}, not yet the smallest: --max-trials is reached after {trials}",
        "interrupted": f"{size}, not yet the smallest: interrupted after {trials}",
        "trouble": f"{size}, not yet the smallest: stopped after {trials}",
    }
    return why[summary.reason]


def needed_lines(summary: Summary[Any], subject: Minimisation) -> list[str]:
    """Return what is needed, stage by stage, and what nobody knows yet."""
    lines = []
    for step in summary.steps:
        if step.title.startswith(NUMBERS):
            continue
        sure = [label for label in step.kept if label not in step.unconfirmed]
        if sure:
            lines.append(f"needed at {subject.confidence:.0%}: {', '.join(sure)}")
        if step.unconfirmed:
            lines.append(f"not known to be needed: {', '.join(step.unconfirmed)}")
    smaller = [label for step in summary.steps if step.title.startswith(NUMBERS) for label in step.removed]
    if smaller:
        lines.append(f"smaller: {', '.join(_merged(smaller))}")
    return lines


def rate_text(failures: int, trials: int) -> str:
    """``fails 5 of 17 times``."""
    return f"fails {failures} of {trials} times" if trials else "not measured"


def minimise_document(summary: Summary[Any], subject: Minimisation, exit_code: int) -> dict[str, Any]:
    """A search as plain data."""
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
        "steps": [
            {
                "title": step.title,
                "trials": step.trials,
                "removed": list(step.removed),
                "kept": list(step.kept),
                "unconfirmed": list(step.unconfirmed),
            }
            for step in summary.steps
        ],
        "trials": summary.trials,
        "resumed": summary.resumed,
        "output": subject.output if summary.seeds else None,
        "journal": subject.journal,
    }


def _requests_left(summary: Summary[Any], subject: Minimisation) -> int:
    return len(summary.steps[0].kept) if summary.steps else subject.requests


def _left(summary: Summary[Any]) -> str:
    return f"what is left {rate_text(*summary.left)}"


def _merged(changes: Sequence[str]) -> list[str]:
    """``a 9 -> 5`` and ``a 5 -> 3`` as ``a 9 -> 3``."""
    found: dict[str, tuple[str, str]] = {}
    for change in changes:
        label, _, values = change.rpartition(" -> ")
        name, _, before = label.rpartition(" ")
        found[name] = (found[name][0] if name in found else before, values)
    return [f"{name} {before} -> {after}" for name, (before, after) in found.items()]


def _seen(seen: Seen) -> str:
    return f"fail {seen.signature}" if seen.signature else "no failure"
