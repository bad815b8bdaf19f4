"""Bounds of measured figures: a benchmark whose figure misses its bound ends with exit code 1.

A bound guards what was reached, on an H100 as on an H200: a ratio, or a part of the card's own rate of reading, never a
figure of one card. The goals that were set, met or not, stand in docs/benchmarks.md.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable
from dataclasses import dataclass

FLAG = "--no-bounds"


@dataclass(frozen=True)
class Bound:
    """A limit of a median on one side; both are in the unit of its row."""

    at_most: float | None = None
    at_least: float | None = None

    def met(self, value: float) -> bool:
        """Return True if a value keeps it; one that is no number keeps none."""
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        sides = (("at most", self.at_most), ("at least", self.at_least))
        return ", ".join(f"{side} {limit:g}" for side, limit in sides if limit is not None)


def add_flag(parser: ArgumentParser) -> None:
    """Give a benchmark the option that lets a figure miss its bound."""
    parser.add_argument(FLAG, action="store_true", help="say which bounds are missed and end with 0: a noisy machine")


def verdict(figures: Iterable[tuple[str, float, Bound | None]], *, no_bounds: bool) -> int:
    """Print which bounds are missed, and return the exit code. A figure has a name, a median, and a bound or none."""
    bounded = [(what, value, bound) for what, value, bound in figures if bound is not None]
    missed = [f"{what}: {value:.3g}, not {bound}" for what, value, bound in bounded if not bound.met(value)]
    for line in missed:
        print(f"MISSED {line}")
    print(f"{len(bounded) - len(missed)} of {len(bounded)} bounds met")
    return 1 if missed and not no_bounds else 0
