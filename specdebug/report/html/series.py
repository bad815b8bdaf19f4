"""Many steps in little room: several steps in a row are drawn as one span."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from specdebug.campaign.loops.steplog import EngineStep
from specdebug.report.words import some

MAX_SPANS = 400
"""Steps that a plot draws apart; more are drawn in runs of equal length."""

LEAST_SPANS = 100
"""Steps that a plot draws apart at least, however many arms a page has."""

MAX_RIDS = 6
"""Requests that a tip names of those that finished or were retracted."""

T = TypeVar("T")


def chunks(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """All items in at most ``most`` runs of one length (the last may be shorter)."""
    length = max(1, -(-len(items) // most))
    return [items[start : start + length] for start in range(0, len(items), length)]


def spans_for(arms: int) -> int:
    """The most spans of an arm's plot on a page of so many arms, so that the page's size stays in bounds."""
    return max(LEAST_SPANS, min(MAX_SPANS, 3 * MAX_SPANS // (arms + 2)))


@dataclass(frozen=True)
class Span:
    """One step, or several in a row.

    Attributes:
        first: number of the first step; ``last`` of the last.
        kinds: the number of steps of each kind.
        batch: the most requests in a step.
        accept: mean accept length over all verifies, with the smallest and greatest of a step; None without verifies.
        seconds: the time of the longest step.
    """

    first: int
    last: int
    kinds: Counter[str]
    batch: int
    emitted: int
    accept: float | None
    accept_low: float
    accept_high: float
    finished: tuple[str, ...]
    retracted: tuple[str, ...]
    seconds: float

    @property
    def name(self) -> str:
        """``step 3``, ``steps 41-60``."""
        return f"step {self.first}" if self.first == self.last else f"steps {self.first}-{self.last}"

    @property
    def middle(self) -> float:
        return (self.first + self.last) / 2

    @property
    def kind(self) -> str:
        """``decode``, or of several ``decode 18, prefill 2``."""
        if len(self.kinds) == 1:
            return next(iter(self.kinds))
        return ", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common())

    @property
    def tip(self) -> str:
        """All facts of the span, line by line."""
        several = self.first != self.last
        lines = [f"{self.name}: {self.kind}", f"{'largest batch' if several else 'batch'} {self.batch}"]
        if self.accept is not None:
            lines.append(f"accept length {self.accept:.2f}")
        lines.append(f"{self.emitted} tokens")
        lines.append(f"{'longest ' if several else ''}{1000 * self.seconds:.1f} ms")
        if self.finished:
            lines.append(f"finished: {some(self.finished, MAX_RIDS)}")
        if self.retracted:
            lines.append(f"retracted: {some(self.retracted, MAX_RIDS)}")
        return "\n".join(lines)


def spans(steps: Sequence[EngineStep], most: int = MAX_SPANS) -> list[Span]:
    """The steps in at most ``most`` runs."""
    return [_span(run) for run in chunks(steps, most)]


def _span(run: Sequence[EngineStep]) -> Span:
    lengths = [length for step in run for length in step.lengths]
    means = [mean for step in run if (mean := step.accept_mean) is not None]
    return Span(
        first=run[0].number,
        last=run[-1].number,
        kinds=Counter(step.kind for step in run),
        batch=max(len(step.rids) for step in run),
        emitted=sum(step.emitted for step in run),
        accept=sum(lengths) / len(lengths) if lengths else None,
        accept_low=min(means, default=0.0),
        accept_high=max(means, default=0.0),
        finished=tuple(rid for step in run for rid in step.finished),
        retracted=tuple(rid for step in run for rid in step.retracted),
        seconds=max(step.seconds for step in run),
    )
