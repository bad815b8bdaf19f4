"""What ``specdebug flake`` states, held to simulated truth: coverage, wrong decisions, and trials saved.

``python benchmarks/flake_simulation.py [--cases N] [--seed N]``: for each of 20 failure rates, N sequences of runs,
stopped as the command stops them. Exits 1 when a figure misses its limit.

**Coverage.** Whether the stated 95% interval holds the true rate where it stopped: without a claim, when the interval
is narrow; with a claim, when that is decided or after 1,000 runs. Beside it the fixed-size (Clopper-Pearson) interval
at the moment that it looks decided, which is what the anytime interval is there to avoid.

**Saved.** The fixed test runs 50 times and takes the rate for 20% or more if 6 or more failed, for 5% or less if not;
its two errors are exact binomial tails. The claim ``rate<5% or rate>20%`` is run at the confidence of the smaller of
the two, so that neither of its errors may be larger, and both are checked.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.special import bdtr, betaincinv

from specdebug.search.claims import Apart, Below, Claim
from specdebug.search.intervals import anytime_bounds, narrow_enough

RATES = (
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.065,
    0.08,
    0.1,
    0.12,
    0.15,
    0.2,
    0.25,
    0.3,
    0.35,
    0.4,
    0.45,
    0.5,
    0.6,
)
CONFIDENCE = 0.95
HORIZON = 1000
SHORT = 400
"""Runs within which one of two rates is always chosen; what is not would count as chosen wrongly."""
CLAIMED = 0.1
FIXED, LOW, HIGH, LIMIT = 50, 0.05, 0.20, 5
COVERAGE, SAVED = 0.95, 0.40

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

GOING_ON, HOLDS, REFUTED = 0, 1, 2


@dataclass(frozen=True)
class Bounds:
    """Both ends of an interval, by failures and runs."""

    low: Floats
    high: Floats

    def hold(self, ends: Ends, rate: float) -> float:
        """The part of the sequences whose interval holds the rate where they ended."""
        low, high = self.low[ends.failures, ends.runs], self.high[ends.failures, ends.runs]
        return float(((low <= rate) & (rate <= high)).mean())


@dataclass(frozen=True)
class Ends:
    """Where each sequence ended, and with what."""

    failures: Counts
    runs: Counts
    answers: NDArray[np.int8]

    def part(self, answer: int) -> float:
        """The part of the sequences that ended with an answer."""
        return float((self.answers == answer).mean())


def grid() -> tuple[Floats, Floats]:
    """Failures and runs up to the horizon; where there are more failures than runs they are clipped."""
    runs, failures = np.broadcast_arrays(np.arange(HORIZON + 1.0), np.arange(HORIZON + 1.0)[:, None])
    return np.minimum(failures, runs), runs


def fixed_bounds(k: Floats, n: Floats) -> Bounds:
    """The Clopper-Pearson interval."""
    tail = (1 - CONFIDENCE) / 2
    low = np.where(k > 0, betaincinv(np.maximum(k, 1), n - k + 1, tail), 0.0)
    high = np.where(k < n, betaincinv(k + 1, np.maximum(n - k, 1), 1 - tail), 1.0)
    return Bounds(low, high)


def rule_of(claim: Claim) -> NDArray[np.int8]:
    """What the claim says, by failures and runs: few failures hold, many refute, and more runs allow more of both."""
    rule = np.zeros((HORIZON + 2, HORIZON + 1), dtype=np.int8)
    most, least = -1, 1
    for n in range(1, HORIZON + 1):
        while most < n and claim.decided(most + 1, n) is True:
            most += 1
        while least <= n and claim.decided(least, n) is not False:
            least += 1
        rule[: most + 1, n], rule[least:, n] = HOLDS, REFUTED
    return rule


def sequences(rate: float, cases: int, seed: int, runs: int = HORIZON) -> Counts:
    """Failures so far, a row each."""
    random = np.random.default_rng((seed, round(rate * 1000)))
    return np.cumsum(random.random((cases, runs), dtype=np.float32) < rate, axis=1, dtype=np.int32)


def follow(failures: Counts, rule: NDArray[Any]) -> Ends:
    """Stop each sequence where the rule says something."""
    runs = np.arange(1, failures.shape[1] + 1)
    said = rule[failures, runs]
    at = np.where(said.any(axis=1), (said != 0).argmax(axis=1), len(runs) - 1)
    row = np.arange(len(failures))
    return Ends(failures[row, at], at + 1, said[row, at].astype(np.int8))


def met(part: float, limit: float, cases: int) -> bool:
    """Whether a simulated part keeps its limit, unless by three standard errors."""
    return part <= limit + 3 * math.sqrt(limit * (1 - limit) / cases)


def coverage(cases: int, seed: int, console: Console) -> bool:
    """The first table. Returns whether it is as it should be."""
    k, n = grid()
    bounds, fixed = Bounds(*anytime_bounds(k, n, CONFIDENCE)), fixed_bounds(k, n)
    narrow = narrow_enough(bounds.high - bounds.low, k, n)
    claim, claimed = rule_of(Below(CLAIMED, CONFIDENCE)), f"rate<{CLAIMED:.0%}"
    clear = (fixed.low > CLAIMED) | (fixed.high < CLAIMED)
    table = Table(title=f"95% intervals where one stops: part that holds the true rate ({cases} cases a rate)")
    names = (
        "rate",
        "narrow",
        "runs",
        f"{claimed} decided",
        "runs",
        "undecided",
        "wrong",
        f"fixed-size, clear of {CLAIMED:.0%}",
    )
    for name in names:
        table.add_column(name, justify="right")
    totals, worst = np.zeros(3), 0.0
    for rate in RATES:
        failures = sequences(rate, cases, seed)
        when_narrow, when_decided, when_clear = (follow(failures, rule) for rule in (narrow, claim, clear))
        held = (bounds.hold(when_narrow, rate), bounds.hold(when_decided, rate), fixed.hold(when_clear, rate))
        wrong = when_decided.part(HOLDS if rate >= CLAIMED else REFUTED)
        totals, worst = totals + np.array(held) / len(RATES), max(worst, wrong)
        row = (f"{rate:.1%}", f"{held[0]:.4f}", f"{when_narrow.runs.mean():.0f}", f"{held[1]:.4f}")
        row += (f"{when_decided.runs.mean():.0f}", f"{when_decided.part(GOING_ON):.3f}", f"{wrong:.4f}")
        table.add_row(*row, f"{held[2]:.4f}")
    table.add_section()
    table.add_row("all", f"{totals[0]:.4f}", "", f"{totals[1]:.4f}", "", "", f"<= {worst:.4f}", f"{totals[2]:.4f}")
    console.print(table)
    return bool(min(totals[:2]) >= COVERAGE) and met(worst, 1 - CONFIDENCE, cases)


def saved(cases: int, seed: int, console: Console) -> bool:
    """The second table."""
    errors = (1 - float(bdtr(LIMIT, FIXED, LOW)), float(bdtr(LIMIT, FIXED, HIGH)))
    claim = Apart(LOW, HIGH, 1 - min(errors))
    rule = rule_of(claim)
    console.print(
        f"\n{claim.text}, each wrong at most {min(errors):.2%} of the time; "
        f"fixed: {FIXED} runs, wrong {errors[0]:.2%} and {errors[1]:.2%}"
    )
    table = Table()
    for name in ("rate", "runs", "saved", "90% of cases", "says low", "fixed says low"):
        table.add_column(name, justify="right")
    means, wrong = {}, {}
    for rate in RATES:
        ends = follow(sequences(rate, cases, seed, SHORT), rule)
        means[rate], wrong[rate] = float(ends.runs.mean()), 1 - ends.part(HOLDS if rate <= LOW else REFUTED)
        row = (
            f"{rate:.1%}",
            f"{means[rate]:.1f}",
            f"{1 - means[rate] / FIXED:.0%}",
            f"{np.quantile(ends.runs, 0.9):.0f}",
        )
        table.add_row(*row, f"{ends.part(HOLDS):.4f}", f"{bdtr(LIMIT, FIXED, rate):.4f}")
    at_both, overall = ((means[LOW] + means[HIGH]) / 2, float(np.mean(list(means.values()))))
    table.add_section()
    table.add_row(f"{LOW:.0%} and {HIGH:.0%}", f"{at_both:.1f}", f"{1 - at_both / FIXED:.0%}")
    table.add_row("all", f"{overall:.1f}", f"{1 - overall / FIXED:.0%}")
    console.print(table)
    right = met(wrong[LOW], errors[0], cases) and met(wrong[HIGH], errors[1], cases)
    return right and max(at_both, overall) <= (1 - SAVED) * FIXED


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="of each rate")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began, console = time.perf_counter(), Console(width=120)
    good = [check(options.cases, options.seed, console) for check in (coverage, saved)]
    wanted = f"coverage at least {COVERAGE:.0%}, wrong at most {1 - CONFIDENCE:.0%}", f"at least {SAVED:.0%} saved"
    for words, met in zip(wanted, good, strict=True):
        console.print(f"{words}: {'yes' if met else 'NO'}")
    console.print(f"{options.cases * len(RATES)} sequences, {time.perf_counter() - began:.0f} s")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
