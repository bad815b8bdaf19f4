"""Intervals for a failure rate and for means, and how far a repeated mean may lie; scipy is imported when one is
computed.

**Fixed.** :func:`clopper_pearson` (Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the
case of the binomial", 1934). Exact, but only where the number of runs does not depend on what they showed.

**Any time.** :func:`anytime_interval`. For every rate p let M_n(p) be the likelihood of the first n runs averaged over
q drawn from Beta(1/2, 1/2), divided by their likelihood at p. If p is the true rate, M is a martingale that starts at
1. By Ville's inequality M ever reaches 1/a with probability at most a, so the set of p with M_n(p) < 1/a holds the true
rate for all n at once with probability at least 1 - a (Robbins, "Statistical methods related to the law of the iterated
logarithm", 1970; Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence
sequences", 2021)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

SLACK = 1e-9


def reached(value: ArrayLike, limit: ArrayLike) -> NDArray[np.bool_]:
    """Return True where ``value`` is at ``limit``, above it, or no more than ``SLACK`` below: last bits, which differ
    from one processor or library to the next, must not decide. Rounding is below 1e-11 here."""
    return np.asarray(np.asarray(value, dtype=np.float64) >= np.asarray(limit, dtype=np.float64) - SLACK)


Floats = NDArray[np.float64]
PRIOR = 0.5  # both parameters of the mixture; 1/2 costs least where rates near 0 matter as much as others
ENOUGH = 0.15  # an interval no wider than this says enough, whatever the rate
ENOUGH_OF_RATE = 0.5  # so does one no wider than this part of the observed rate
_HALVINGS = 50


@dataclass(frozen=True)
class Interval:
    """Both ends of an interval for a rate."""

    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


def clopper_pearson(failures: int, runs: int, confidence: float) -> Interval:
    """Return the exact interval for a number of runs that was fixed beforehand. Raises ValueError for counts and
    confidences that cannot be."""
    from scipy.special import betaincinv

    _check(failures, runs, confidence)
    tail = (1 - confidence) / 2
    low = float(betaincinv(failures, runs - failures + 1, tail)) if failures else 0.0
    high = float(betaincinv(failures + 1, runs - failures, 1 - tail)) if failures < runs else 1.0
    return Interval(low, high)


def anytime_interval(failures: int, runs: int, confidence: float) -> Interval:
    """Return the interval that holds however it was decided to stop. Raises as :func:`clopper_pearson`."""
    _check(failures, runs, confidence)
    low, high = anytime_bounds(failures, runs, confidence)
    return Interval(float(low), float(high))


def anytime_bounds(failures: ArrayLike, runs: ArrayLike, confidence: float) -> tuple[Floats, Floats]:
    """Return the ends of :func:`anytime_interval` for many counts at once."""
    from scipy.special import betaln, xlog1py, xlogy

    k, n = np.broadcast_arrays(np.asarray(failures, dtype=np.float64), np.asarray(runs, dtype=np.float64))
    mixture = betaln(k + PRIOR, n - k + PRIOR) - betaln(PRIOR, PRIOR)
    # p is inside while its likelihood exceeds this; the likelihood rises to its peak at k/n and falls from there.
    least = mixture + np.log1p(-confidence)
    peak = np.divide(k, n, out=np.full(k.shape, 0.5), where=n > 0)

    def end(outside: Floats) -> Floats:
        inside = peak.copy()
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            held = xlogy(k, middle) + xlog1py(n - k, -middle) > least
            inside, outside = np.where(held, middle, inside), np.where(held, outside, middle)
        return outside

    low, high = end(np.zeros_like(peak)), end(np.ones_like(peak))
    return np.where(k > 0, low, 0.0), np.where(k < n, high, 1.0)


def narrow_enough(width: ArrayLike, failures: ArrayLike, runs: ArrayLike) -> NDArray[np.bool_]:
    """Return True where a rate is known to within 15 percentage points, or to within half the observed rate."""
    rate = np.asarray(failures) / np.maximum(runs, 1)
    return reached(np.maximum(ENOUGH, ENOUGH_OF_RATE * rate), width)


def _check(failures: int, runs: int, confidence: float) -> None:
    if not 0 <= failures <= runs:
        raise ValueError(f"{failures} failures of {runs} runs")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}")


CONFIDENCE = 0.999  # two-sided, of a single comparison


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
