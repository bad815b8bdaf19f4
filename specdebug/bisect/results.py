"""The answer and the rates that a search hands back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """A culprit set and the posterior probability that it is exactly right; an empty set says "none of these"."""

    culprits: frozenset[str]
    probability: float


@dataclass(frozen=True)
class Rate:
    """Posterior mean and central 90% interval of a rate."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Rates:
    """The rate at which the bug shows when it can, if there is a culprit, and at which a trial fails without it."""

    manifest: Rate
    false_failure: Rate
