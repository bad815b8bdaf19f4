"""Claims about a failure rate, and when runs have decided one.

``rate<1%``: holds or is refuted, each wrongly with probability at most 1 - confidence, however often one looks. Where
the rate is near the one claimed, that can take arbitrarily many runs.

``rate<5% or rate>20%``: Wald's sequential probability ratio test ("Sequential tests of statistical hypotheses", 1945)
says which. At a rate of at most 5%, or of at least 20%, it errs with probability at most 1 - confidence. In between
either may be the answer, so it always ends; at both rates it takes about half the runs of a test of fixed size."""

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdebug.base.errors import SpecDebugError
from specdebug.base.reproducible import log, log1p, total
from specdebug.search.intervals import PRIOR, SLACK, reached

_LONG = 150  # runs, midway between the rates, beyond which limits are not drawn in
_STEPS = 2500
_ALIVE = 1e-6
"""Runs after which, or probability of going on at which, to stop following; what is left is counted as an error."""
_HALVINGS = 7


@dataclass(frozen=True)
class RatioTest:
    """Ends with "low" or "high" once the log likelihood ratio of the higher rate over the lower is down at ``-down`` or
    up at ``up``. Limits of ln(1/error) keep both errors by Ville's inequality, but a failure lands well beyond the
    limit, so they allow more runs than needed. Each is therefore drawn in (:func:`ratio_test`) until the exact
    probability of a wrong end, found by following every path, is just allowed; where tests are long, Ville's limits
    stay."""

    below: float
    above: float
    up: float
    down: float

    def ratio(self, failures: int, runs: int) -> float:
        """Return the log of the runs' likelihood at ``above`` over that at ``below``, added up of those that ``failed``
        and those that ``passed``, which add less than 0."""
        return failures * self.failed + (runs - failures) * self.passed

    @property
    def failed(self) -> float:
        return float(log(self.above / self.below))

    @property
    def passed(self) -> float:
        return float(log1p(-self.above) - log1p(-self.below))


def ratio_test(below: float, above: float, error: float) -> RatioTest:
    """Return the test whose errors, at ``below`` and at ``above``, are each at most ``error``."""
    up = down = -float(log(error))
    widest = RatioTest(below, above, up, down)
    if up * down > _LONG * widest.failed * -widest.passed:
        return widest
    test = widest
    for _ in range(2):  # each limit is valid for the other as it was; drawing that in only makes errors rarer
        test = _drawn_in(test, "up", below, error)
        test = _drawn_in(test, "down", above, error)
    return test


def _drawn_in(test: RatioTest, side: Literal["up", "down"], rate: float, error: float) -> RatioTest:
    """Return the test with one limit as near as the probability to end there at ``rate`` may be."""
    limit: float = getattr(test, side)
    least = limit / 4
    for _ in range(_HALVINGS):
        middle = (least + limit) / 2
        nearer = replace(test, **{side: middle})
        low, high = ended(nearer, rate)
        if (high if side == "up" else low) <= error - SLACK:
            limit, test = middle, nearer
        else:
            least = middle
    return test


def ended(test: RatioTest, rate: float) -> tuple[float, float]:
    """Return the probabilities to end "low" and "high" at a rate; what goes on for very long counts as both."""
    alive, fewest = np.ones(1), 0
    low = high = 0.0
    for runs in range(1, _STEPS + 1):
        stepped = np.zeros(len(alive) + 1)
        stepped[:-1] = alive * (1 - rate)
        stepped[1:] += alive * rate
        failures = fewest + np.arange(len(stepped))
        ratio = failures * test.failed + (runs - failures) * test.passed
        is_low, is_high = reached(-ratio, test.down), reached(ratio, test.up)
        low += float(total(stepped[is_low]))
        high += float(total(stepped[is_high]))
        alive = stepped[~(is_low | is_high)]
        fewest += int(is_low.sum())  # those that end low have the fewest failures
        if total(alive) < _ALIVE:
            break
    rest = float(total(alive))
    return low + rest, high + rest


KEPT_BACK = 1 / 128
"""The part of the allowed error that is left after a failure; the part up to k is ``1 - KEPT_BACK / (k + 1)``."""

_FIRST_DEPTH = 16


class CleanRuns:
    """The number of runs that a claim "the rate is below ``rate``" needs after so many failures, if one may look after
    every run; it accepts runs of that rate or of a higher one with probability ``error`` at most.

    The probability that runs of that rate come so far by luck is spread over failures as alpha spending spreads it over
    interim looks (Lan and DeMets, "Discrete sequential boundaries for clinical trials", 1983): all together get at most
    the error. The probabilities are exact: between two boundaries the distribution of failures among the paths not yet
    accepted is convolved with a binomial one. Nearly the whole error goes to no failure, so that 299 clean runs show
    "below 1%" at 95% as in a fixed test; one part in 128 is kept for claims that survive a failure.
    """

    def __init__(self, rate: float, error: float) -> None:
        if not (0 < rate < 1 and 0 < error < 1):
            raise ValueError(f"rate {rate}, error {error}")
        self._rate = rate
        self._error = error
        self._boundaries: list[int] = []

    def needed(self, failures: int) -> int:
        """Return how many runs, failed ones included, must be over to accept the claim after so many failures."""
        if failures >= len(self._boundaries):
            self._boundaries = self._compute(max(_FIRST_DEPTH, 2 * failures) + 1)
        return self._boundaries[failures]

    def _compute(self, depth: int) -> list[int]:
        waiting = np.zeros(depth)  # by failures so far: probability of getting here without being accepted
        waiting[0] = 1.0
        spent, runs, boundaries = 0.0, 0, []
        for k in range(depth):
            allowed = self._error * (1 - KEPT_BACK / (k + 1)) - spent
            more = 0
            too_many = math.log(waiting[k] / allowed) - SLACK if waiting[k] > 0 else 0.0
            if too_many > 0:  # no search waits with fewer failures, so these only thin out
                more = math.ceil(too_many / -math.log1p(-self._rate))
                waiting = np.convolve(waiting, _binomial(more, self._rate, depth))[:depth]
            runs += more
            spent += float(waiting[k])
            waiting[k] = 0.0
            boundaries.append(runs)
        return boundaries


def clean_bound(runs: int, confidence: float) -> float:
    """Return the least rate that the rule would accept if none of the runs failed."""
    return 1.0 if runs == 0 else -math.expm1(math.log((1 - confidence) * (1 - KEPT_BACK)) / runs)


def _binomial(runs: int, rate: float, depth: int) -> NDArray[np.float64]:
    """Return the probabilities of 0, 1, ... failures, ``depth`` of them at most."""
    from scipy.special import gammaln, xlog1py

    k = np.arange(min(depth, runs + 1), dtype=np.float64)
    choose = gammaln(runs + 1) - gammaln(k + 1) - gammaln(runs - k + 1)
    return np.asarray(np.exp(choose + k * math.log(rate) + xlog1py(runs - k, -rate)))


_NUMBER = r"(\d+\.?\d*|\.\d+)\s*(%?)"
_CLAIM = re.compile(rf"\s*rate\s*<=?\s*{_NUMBER}(?:\s+or\s+rate\s*>=?\s*{_NUMBER})?\s*")


@dataclass(frozen=True)
class Below:
    """The claim that the rate is below ``rate``. Ask after every run: the first answer is the answer."""

    rate: float
    confidence: float

    @property
    def text(self) -> str:
        return f"rate<{percent(self.rate)}"

    def decided(self, failures: int, runs: int) -> bool | None:
        """Return True if it holds, False if it is refuted, None as long as that is open."""
        if runs >= self._clean.needed(failures):
            return True
        limit = -math.log1p(-self.confidence)
        return False if reached(self._evidence_against(failures, runs), limit) else None

    def owed(self, failures: int, runs: int) -> int:
        """Return how many runs without a failure are missing before it holds."""
        return max(0, self._clean.needed(failures) - runs)

    def verdict(self, holds: bool) -> str:
        return f"`{self.text}` {'holds' if holds else 'is refuted'}"

    @cached_property
    def _clean(self) -> CleanRuns:
        return CleanRuns(self.rate, 1 - self.confidence)

    def _evidence_against(self, failures: int, runs: int) -> float:
        """Return the log of the runs' likelihood, averaged over Beta(1/2, 1/2) above ``rate``, over that at ``rate``:
        for any rate below, a supermartingale that starts at 1."""
        from scipy.special import betaincc, betaln

        if failures <= self.rate * runs:
            return -math.inf  # no evidence, and the integral could underflow
        a, b = failures + PRIOR, runs - failures + PRIOR
        above = betaln(a, b) + math.log(betaincc(a, b, self.rate))
        prior = betaln(PRIOR, PRIOR) + math.log(betaincc(PRIOR, PRIOR, self.rate))
        at = failures * math.log(self.rate) + (runs - failures) * math.log1p(-self.rate)
        return float(above - prior - at)


@dataclass(frozen=True)
class Apart:
    """The claim that the rate is rather ``below`` than ``above``, asked as :class:`Below` is."""

    below: float
    above: float
    confidence: float

    @property
    def text(self) -> str:
        return f"rate<{percent(self.below)} or rate>{percent(self.above)}"

    def decided(self, failures: int, runs: int) -> bool | None:
        ratio = self._test.ratio(failures, runs)
        if reached(-ratio, self._test.down):
            return True
        return False if reached(ratio, self._test.up) else None

    def owed(self, failures: int, runs: int) -> int:
        missing = self._test.ratio(failures, runs) + self._test.down - SLACK
        return max(0, math.ceil(missing / -self._test.passed))

    def verdict(self, holds: bool) -> str:
        sides = (f"`rate<{percent(self.below)}`", f"`rate>{percent(self.above)}`")
        return "{} rather than {}".format(*(sides if holds else sides[::-1]))

    @cached_property
    def _test(self) -> RatioTest:
        return ratio_test(self.below, self.above, 1 - self.confidence)


Claim: TypeAlias = Below | Apart


def parse_claim(text: str, confidence: float) -> Claim:
    """Read ``rate<1%``, ``rate<0.01`` or ``rate<5% or rate>20%``. Raises SpecDebugError."""
    match = _CLAIM.fullmatch(text)
    if not match:
        raise SpecDebugError(f"--claim must be such as 'rate<1%' or 'rate<5% or rate>20%', got {text!r}")
    below, above = (
        None if number is None else float(number) / (100 if sign else 1)
        for number, sign in ((match[1], match[2]), (match[3], match[4]))
    )
    assert below is not None  # for the type checker: the pattern has it
    if not 0 < below < 1 or not (above is None or 0 < above < 1):
        raise SpecDebugError(
            f"--claim needs rates above 0% and below 100%, got {text!r}; no number of runs shows either"
        )
    if above is None:
        return Below(below, confidence)
    if not below < above:
        raise SpecDebugError(f"--claim {text!r} has the rates the wrong way round: the first must be the lower")
    return Apart(below, above, confidence)


def percent(rate: float) -> str:
    return f"{100 * rate:.6g}%"
