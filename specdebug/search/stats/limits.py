"""Decide alike on every processor if a computed number has reached a limit.

Logarithms and scipy's special functions differ by last bits from one processor or library to the next, and counts of
runs can meet a limit exactly (20 times likelier, at 95%). So whatever is within ``SLACK`` of its limit has reached it;
rounding is below 1e-11 here, and an error of 5% that is too large by its billionth part is still one of 5%.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

SLACK = 1e-9


def reached(value: ArrayLike, limit: ArrayLike) -> NDArray[np.bool_]:
    """Return True where ``value`` is at ``limit``, above it, or no more than ``SLACK`` below."""
    return np.asarray(np.asarray(value, dtype=np.float64) >= np.asarray(limit, dtype=np.float64) - SLACK)
