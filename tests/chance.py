"""Bounds for counts of random events, so that a test holds a programme to what it states and to nothing luckier."""

from scipy.stats import binom

LUCK = 1e-4
"""Probability at most with which a bound is passed by something that is as good as it states."""


def most(cases: int, chance: float) -> int:
    """The count that is exceeded with probability ``LUCK`` at most if each case is one with probability ``chance``."""
    return int(binom.isf(LUCK, cases, chance))


def fewest(cases: int, chance: float) -> int:
    """The count that is fallen short of with probability ``LUCK`` at most, at this chance a case."""
    return cases - most(cases, 1 - chance)
