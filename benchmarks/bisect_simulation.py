"""The Bayesian search against simulated flaky bugs, beside halving and ddmin with retries at equal trials.

``python benchmarks/bisect_simulation.py [--cases 10000] [--jobs 2] [--seed 0] [--out docs] [--drifting 0]``

Sixteen toggles; the culprit is one of them, an interacting pair, or none. Every case is seeded by its number. A
baseline calls a set failing when any of k runs of it fails; k is, stratum by stratum and in hindsight, the one that is
right most often among those whose mean number of trials is not above the Bayesian search's own (or 1, if none is).

With ``--out`` a chart is written there (needs matplotlib: the extra ``bench``). ``--drifting 0`` tells the search that
bursts cannot be.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from specdebug.search.bisect import Bisector
from specdebug.search.posterior import Prior

TOGGLES = tuple(f"toggle-{i}" for i in range(16))
RATES, FALSE = (1.0, 0.7, 0.5, 0.3, 0.2), (0.0, 0.02, 0.05)
SIZES = {"single": 1, "pair": 2, "none": 0}
LIMIT = 3000  # trials; a search that needs more has failed
RETRIES = (1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64)
PART = 20  # cases a task
STATED = (0.95, 0.96, 0.97, 0.98, 0.99, 1.0)


@dataclass(frozen=True)
class Bursts:
    """Periods that come with chance ``onset`` a trial and last ``length`` trials on average.

    In a bad one any trial fails with ``strength`` besides; in a quiet one the bug does not show.
    """

    name: str
    onset: float
    length: float
    strength: float = 0.0


@dataclass(frozen=True)
class Stratum:
    """Cases of one kind."""

    kind: str
    rate: float
    false: float
    bursts: Bursts | None = None


@dataclass(frozen=True)
class Outcome:
    """How one search ended; ``stated`` is 0 when it gave no answer."""

    trials: int
    exact: bool
    stated: float = 0.0


STEADY = [
    *(Stratum(kind, rate, false) for kind, rate, false in product(("single", "pair"), RATES, FALSE)),
    *(Stratum("none", 0.0, false) for false in FALSE),
]
BURSTY = [
    Stratum(kind, 0.5 if SIZES[kind] else 0.0, 0.02, bursts)
    for bursts in (
        Bursts("bad", 0.01, 10, 0.9),
        Bursts("bad, mild", 0.03, 10, 0.6),
        Bursts("bad, long", 0.02, 25, 1.0),
        Bursts("quiet", 0.02, 10),
        Bursts("quiet, long", 0.02, 30),
    )
    for kind in SIZES
]


class Machine:
    """A simulated test: the culprit, its rates, and the periods that it runs through."""

    def __init__(self, stratum: Stratum, seed: Sequence[int]) -> None:
        self._rng = np.random.default_rng(seed)
        self._stratum = stratum
        self._disturbed = False
        self.culprits = frozenset(self._rng.choice(TOGGLES, SIZES[stratum.kind], replace=False).tolist())
        self.trials = 0

    def fails(self, reverted: frozenset[str]) -> bool:
        """Run one trial."""
        self.trials += 1
        stratum, bursts, draw = self._stratum, self._stratum.bursts, self._rng.random
        if bursts:
            self._disturbed = draw() < (1 - 1 / bursts.length if self._disturbed else bursts.onset)
            if self._disturbed and draw() < bursts.strength:
                return True
        quiet = self._disturbed and bursts is not None and not bursts.strength
        shows = bool(self.culprits) and self.culprits <= reverted and not quiet and draw() < stratum.rate
        return bool(shows or draw() < stratum.false)


def bayesian(machine: Machine, seed: int, prior: Prior) -> Outcome:
    """The search under test."""
    search = Bisector(TOGGLES, seed=seed, prior=prior)
    while (answer := search.answer) is None and search.trials < LIMIT:
        trial = search.next_trial()
        search.observe(trial, machine.fails(trial))
    if answer is None:
        return Outcome(search.trials, False)
    return Outcome(search.trials, answer.culprits == machine.culprits, answer.probability)


def retried(machine: Machine, retries: int) -> Callable[[Sequence[str]], bool]:
    """A test of a set that fails when any of ``retries`` trials does; what is known is not run again."""
    known: dict[frozenset[str], bool] = {}

    def test(members: Sequence[str]) -> bool:
        reverted = frozenset(members)
        if reverted not in known:
            known[reverted] = any(machine.fails(reverted) for _ in range(retries))
        return known[reverted]

    return test


def halving(test: Callable[[Sequence[str]], bool]) -> frozenset[str]:
    """Keep the half that fails, until neither does or one toggle is left."""
    left: Sequence[str] = TOGGLES
    if not test(left):
        return frozenset()
    while len(left) > 1:
        middle = len(left) // 2
        failing = [half for half in (left[:middle], left[middle:]) if test(half)][:1]
        if not failing:
            break
        left = failing[0]
    return frozenset(left)


def ddmin(test: Callable[[Sequence[str]], bool]) -> frozenset[str]:
    """Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002."""
    left: list[str] = list(TOGGLES)
    if not test(left):
        return frozenset()
    parts = 2
    while len(left) > 1:
        edges = [len(left) * i // parts for i in range(parts + 1)]
        chunks = [left[a:b] for a, b in pairwise(edges)]
        rests = [left[:a] + left[b:] for a, b in pairwise(edges)]
        if (smaller := next(filter(test, chunks), None)) is not None:
            left, parts = smaller, 2
        elif parts > 2 and (smaller := next(filter(test, rests), None)) is not None:
            left, parts = smaller, parts - 1
        elif parts < len(left):
            parts = min(2 * parts, len(left))
        else:
            break
    return frozenset(left)


BASELINES = {"halving": halving, "ddmin": ddmin}


def run_part(stratum: Stratum, seed: int, cases: range, prior: Prior) -> list[Outcome]:
    """The Bayesian search on some cases of a stratum."""
    return [bayesian(Machine(stratum, (seed, case)), case, prior) for case in cases]


def run_baselines(stratum: Stratum, seed: int, cases: range, trials: float) -> dict[str, list[Outcome]]:
    """Each baseline on the cases of a stratum, with the best number of retries that ``trials`` on average allow."""
    chosen: dict[str, list[Outcome]] = {}
    for name, find in BASELINES.items():
        for retries in RETRIES:
            outcomes = []
            for case in cases:
                machine = Machine(stratum, (seed, case))
                found = find(retried(machine, retries))
                outcomes.append(Outcome(machine.trials, found == machine.culprits))
            if retries == 1 or (mean_trials(outcomes) <= trials and share_exact(outcomes) > share_exact(chosen[name])):
                chosen[name] = outcomes
            if mean_trials(outcomes) > trials:
                break
    return chosen


Results = dict[Stratum, dict[str, list[Outcome]]]


def simulate(cases: int, jobs: int, seed: int, prior: Prior) -> Results:
    """Everything: ``cases`` over the steady strata, and a tenth as many on top over those with bursts."""
    numbers: dict[Stratum, range] = {}
    for strata, total in ((STEADY, cases), (BURSTY, math.ceil(cases / 10))):
        for i, stratum in enumerate(strata):
            start = len(numbers) * 1_000_000
            numbers[stratum] = range(start, start + len(range(i, total, len(strata))))
    context = multiprocessing.get_context("spawn")  # workers import numpy under the setting of main
    results: Results = {}
    with ProcessPoolExecutor(jobs, mp_context=context) as workers:
        parts = {
            stratum: [
                workers.submit(run_part, stratum, seed, mine[i : i + PART], prior) for i in range(0, len(mine), PART)
            ]
            for stratum, mine in numbers.items()
        }
        for stratum, futures in parts.items():
            ours = [outcome for future in futures for outcome in future.result()]
            results[stratum] = {"bayesian": ours}
        others = {
            stratum: workers.submit(run_baselines, stratum, seed, numbers[stratum], mean_trials(found["bayesian"]))
            for stratum, found in results.items()
            if found["bayesian"]
        }
        for stratum, future in others.items():
            results[stratum] |= future.result()
    return {stratum: found for stratum, found in results.items() if found["bayesian"]}


def mean_trials(outcomes: Sequence[Outcome]) -> float:
    return statistics.fmean(outcome.trials for outcome in outcomes) if outcomes else 0.0


def share_exact(outcomes: Sequence[Outcome]) -> float:
    return 100 * statistics.fmean(outcome.exact for outcome in outcomes)


def pooled(results: Results, method: str, keep: Callable[[Stratum], bool]) -> list[Outcome]:
    """Outcomes of a method over all strata to ``keep``."""
    return [outcome for stratum, found in results.items() if keep(stratum) for outcome in found[method]]


def row(name: Sequence[str], results: Results, keep: Callable[[Stratum], bool]) -> list[str]:
    ours = pooled(results, "bayesian", keep)
    trials = [outcome.trials for outcome in ours]
    answered = [outcome for outcome in ours if outcome.stated]
    stated = 100 * statistics.fmean(o.stated for o in answered) if answered else math.nan
    right = share_exact(answered) if answered else math.nan
    cells = [*name, str(len(ours)), f"{share_exact(ours):.1f}", f"{stated:.1f}", f"{right:.1f}"]
    cells += [f"{mean_trials(ours):.1f}", f"{statistics.median(trials):.0f}", f"{np.quantile(trials, 0.95):.0f}"]
    for method in BASELINES:
        theirs = pooled(results, method, keep)
        cells += [f"{share_exact(theirs):.1f}", f"{mean_trials(theirs):.1f}"]
    return cells


def table(results: Results) -> Table:
    """One row a stratum, then sums over strata."""
    out = Table(title="16 toggles; baselines: the best number of retries within the same mean number of trials")
    for column in ("culprit", "rate", "false", "bursts", "cases", "exact %", "stated %", "right %", "trials mean"):
        out.add_column(column, justify="right")
    for column in ("median", "p95", "halving exact %", "trials", "ddmin exact %", "trials"):
        out.add_column(column, justify="right")
    for stratum in results:
        name = (stratum.kind, f"{stratum.rate:g}", f"{stratum.false:g}", stratum.bursts.name if stratum.bursts else "-")
        out.add_row(*row(name, results, lambda s, one=stratum: s == one))
    out.add_section()
    for kind, rate in [*product(("single", "pair"), RATES), ("none", 0.0)]:
        rows = [s for s in results if s.kind == kind and s.rate == rate and s.bursts is None]
        if rows:
            name = (kind, f"{rate:g}", "all", "-")
            out.add_row(*row(name, results, rows.__contains__))
    out.add_section()
    out.add_row(*row(("all", "all", "all", "-"), results, lambda s: s.bursts is None))
    if any(s.bursts for s in results):
        out.add_row(*row(("all", "0.5", "0.02", "all"), results, lambda s: s.bursts is not None))
    return out


def calibration(results: Results) -> Table:
    """Stated probability against the share that was right."""
    out = Table(title="calibration: answers by the probability that they state")
    for column in ("bursts", "stated %", "answers", "mean stated %", "right %"):
        out.add_column(column, justify="right")
    for bursts in (False, True):
        ours = pooled(results, "bayesian", lambda s, b=bursts: (s.bursts is not None) == b)
        for low, high in pairwise(STATED):
            here = [o for o in ours if low <= o.stated < high or (high == 1.0 and o.stated == 1.0)]
            if here:
                stated = 100 * statistics.fmean(o.stated for o in here)
                name = f"{100 * low:.0f} to {100 * high:.0f}"
                cells = ("yes" if bursts else "no", name, str(len(here)), f"{stated:.1f}", f"{share_exact(here):.1f}")
                out.add_row(*cells)
    return out


def chart(results: Results, path: Path) -> None:
    """Exact answers by manifest rate, the three methods side by side, for singles and for pairs."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "specdebug", "font.family": "sans-serif"}
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for panel, kind in zip(axes, ("single", "pair"), strict=True):
        ticks = []
        for method, style in (("bayesian", "o-"), ("halving", "s--"), ("ddmin", "^:")):
            exact = []
            for rate in RATES:
                found = pooled(results, method, lambda s, r=rate, k=kind: (s.kind, s.rate, s.bursts) == (k, r, None))
                exact.append(share_exact(found))
                if method == "bayesian":
                    ticks.append(f"{rate:g}\n{mean_trials(found):.0f} trials")
            panel.plot(range(len(RATES)), exact, style, label=method if method == "bayesian" else f"{method}, retried")
        panel.set_xticks(range(len(RATES)), ticks)
        panel.set_xlabel("manifest rate; mean trials of the Bayesian search")
        panel.set_title("one culprit" if kind == "single" else "two that only fail together")
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("culprit set exactly right, %")
    axes[0].set_ylim(0, 103)
    axes[0].legend(loc="lower left")
    figure.suptitle("16 toggles, false failures 0 to 5%; the best number of retries within as many trials")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=330)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drifting", type=float, default=Prior.drifting, help="prior probability of bursts")
    parser.add_argument("--out", type=Path, help="folder for the chart")
    options = parser.parse_args()
    if options.out and not options.out.is_dir():
        parser.error(f"{options.out} is no folder")
    if options.out:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            parser.error("--out draws a chart and needs matplotlib: pip install 'specdebug[bench]'")
    os.environ["OMP_NUM_THREADS"] = "1"
    began = time.perf_counter()
    results = simulate(options.cases, options.jobs, options.seed, Prior(drifting=options.drifting))
    console = Console(width=170 if not sys.stdout.isatty() else None)
    console.print(table(results))
    console.print(calibration(results))
    console.print(f"{options.cases} cases and a tenth with bursts in {time.perf_counter() - began:.0f} s")
    if options.out:
        chart(results, options.out / "bisect_simulation.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
