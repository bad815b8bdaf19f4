"""Claims about a failure rate, and when runs have decided one.

``rate<1%``: holds or is refuted, each wrongly with probability at most 1 - confidence, however often one looks. Where
the rate is near the one claimed, that can take arbitrarily many runs.

``rate<5% or rate>20%``: Wald's sequential probability ratio test ("Sequential tests of statistical hypotheses", 1945)
says which. At a rate of at most 5%, or of at least 20%, it errs with probability at most 1 - confidence. In between
either may be the answer, so it always ends; at both rates it takes about half the runs of a test of fixed size.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from specdebug.base.errors import SpecDebugError
from specdebug.search.stats.clean import CleanRuns
from specdebug.search.stats.intervals import PRIOR
from specdebug.search.stats.limits import SLACK, reached
from specdebug.search.stats.ratio import RatioTest, ratio_test

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
    """Return a rate in percent, in as few digits as it needs: ``1%``, ``0.5%``."""
    return f"{100 * rate:.6g}%"
