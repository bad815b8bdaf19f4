"""How far the mean of a run that is repeated may lie from the first one's, by chance alone; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

CONFIDENCE = 0.999
"""Two-sided, of a single comparison."""


def spread(values: Sequence[int]) -> float:
    """Standard deviation of what is at least 1. One value at 1 and one at the highest are added: a few that happen to
    be equal are no proof that all would be."""
    if not values:
        return 0.0
    padded = [*values, 1, max(values)]
    middle = sum(padded) / len(padded)
    return math.sqrt(sum((value - middle) ** 2 for value in padded) / (len(padded) - 1))


def repeat_margin(sd: float, number: int, drawn: int) -> float:
    """How far the mean of ``number`` values may move when so many of them are ``drawn`` again: Student's t, with the
    variance of a difference of two samples of that size."""
    from scipy.special import stdtrit

    return float(stdtrit(max(1, number - 1), (1 + CONFIDENCE) / 2)) * sd * math.sqrt(2 * drawn) / number


def most_events(mean: float) -> int:
    """The number of independent rare events that is exceeded with at most the probability of one tail."""
    chance = total = math.exp(-mean)
    events = 0
    while total < (1 + CONFIDENCE) / 2 and events < 10 * mean + 100:
        events += 1
        chance *= mean / events
        total += chance
    return events
