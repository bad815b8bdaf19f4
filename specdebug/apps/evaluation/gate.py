"""The gate: a score and an accept length against what is expected of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from specdebug.base.errors import SpecDebugError, one_line
from specdebug.search.intervals import Interval, clopper_pearson, pooled_interval, pooled_mean

_THRESHOLD = re.compile(r"\s*(>=|>)?\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*")


class ThresholdError(SpecDebugError):
    """A threshold that cannot be read, or that no value could be held against."""


@dataclass(frozen=True)
class Threshold:
    """The least that is expected; ``strict``: and more than that."""

    least: float
    strict: bool = False

    def __str__(self) -> str:
        return f"{'>' if self.strict else '>='}{self.least:g}"

    def held_by(self, value: float) -> bool:
        """Return True if a value is enough."""
        return value > self.least if self.strict else value >= self.least


def parse_threshold(text: str, low: float, high: float) -> Threshold:
    """Read ``>=0.72``, ``>2.26``, or a number alone, which means at least; in percent, too. Raises ThresholdError."""
    match = _THRESHOLD.fullmatch(text)
    if not match:
        raise ThresholdError(f"must be such as '>=0.72' or '>2.26', got {one_line(text, 40)!r}")
    least = float(match[2]) / (100 if match[3] else 1)
    if not low <= least <= high:
        raise ThresholdError(f"must be from {low:g} to {high:g}, got {least:g}")
    return Threshold(least, match[1] == ">")


SCORE, ACCEPT_LENGTH = (0.0, 1.0), (1.0, 1024.0)
"""Bounds of thresholds."""


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval. ``value``: None where nothing was measured; ``why``: why that is, in words."""

    name: str
    value: float | None
    interval: Interval | None = None
    number: int = 0
    why: str = ""


@dataclass(frozen=True)
class Check:
    """One threshold. ``held``: None where it is not decided, of which ``why`` says why."""

    name: str
    threshold: Threshold
    held: bool | None
    why: str = ""
    inside: bool = False
    """The threshold lies inside the interval: another draw of questions might fall on its other side."""


def score_of(right: int, asked: int, confidence: float) -> Estimate:
    """The part of the answers that is right, with the exact interval for a number fixed beforehand."""
    if not asked:
        return Estimate("score", None, why="no question was answered")
    return Estimate("score", right / asked, clopper_pearson(right, asked, confidence), asked)


def accept_length_of(verifies: Sequence[Sequence[int]], confidence: float, why: str) -> Estimate:
    """Tokens a verify over all verifies of all answers; the interval takes answers, not verifies, as drawn. ``why``:
    why there might be none."""
    sums, counts = [sum(each) for each in verifies], [len(each) for each in verifies]
    value = pooled_mean(sums, counts)
    if value is None:
        return Estimate("accept length", None, why=why or "no draft was verified")
    between = pooled_interval(sums, counts, confidence)
    if between is not None:
        between = Interval(max(between.low, 1.0), between.high)  # a verify gives a token at least
    return Estimate("accept length", value, between, sum(counts))


def check(measured: Estimate, threshold: Threshold | None, incomplete: str) -> list[Check]:
    """The check of what was measured, if a threshold is set. ``incomplete``: why not every question has an answer."""
    if threshold is None:
        return []
    if incomplete or measured.value is None:
        return [Check(measured.name, threshold, None, incomplete or measured.why)]
    between = measured.interval
    inside = between is not None and between.low < threshold.least < between.high
    return [Check(measured.name, threshold, threshold.held_by(measured.value), inside=inside)]
