"""The mean over what comes in clusters: its interval counts the clusters, within which values are alike; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specdebug.search.stats.intervals import Interval


def pooled_mean(sums: Sequence[float], counts: Sequence[int]) -> float | None:
    """The mean of all values of all clusters, of which ``sums`` and ``counts`` are given; None of no value."""
    total = sum(counts)
    return sum(sums) / total if total else None


def pooled_interval(sums: Sequence[float], counts: Sequence[int], confidence: float) -> Interval | None:
    """The interval of :func:`pooled_mean` for clusters drawn at random: that of a ratio of two means, linearised, by
    Student's t (Cochran, "Sampling Techniques", 1977, section 6). None of fewer than two clusters that hold a value."""
    from scipy.special import stdtrit

    pairs = [(part, count) for part, count in zip(sums, counts, strict=True) if count]
    mean = pooled_mean(sums, counts)
    if mean is None or len(pairs) < 2:
        return None
    squares = sum((part - mean * count) ** 2 for part, count in pairs)
    number = len(pairs)
    error = math.sqrt(number / (number - 1) * squares) / sum(count for _, count in pairs)
    reach = float(stdtrit(number - 1, (1 + confidence) / 2)) * error
    return Interval(mean - reach, mean + reach)
