"""Arithmetic with the same bits on every processor, so that choices made from it are the same, too.

Bits differ by the order in which a BLAS, SIMD width or thread count adds, by fused multiply-add, and in every
library's log and exp; not in one IEEE 754 operation. So logarithms are made of those alone, and sums have a stated
order or lie :func:`on_grid`.
"""

from collections.abc import Callable
from typing import SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

GRID = 2.0**-48  # numbers on this grid add up exactly as long as sums stay below 32
LEVEL = 2.0**-24
"""Bits of information, probabilities and log odds that are nearer than this (6e-8) are equal. Rounding, that to grids
included, moves them by less than a tenth of it, and a trial that is better by no more than this is not better."""


def on_grid(values: Floats, grid: float = GRID) -> Floats:
    """The nearest multiples of ``grid``, a power of two, of values below ``2**51 * grid`` in size. Sums of them are
    exact while below ``2**53 * grid``, in whatever order."""
    coarse = 1.5 * 2**52 * grid  # its neighbours are one grid apart, so the sum below is rounded to it
    rounded: Floats = values + coarse
    rounded -= coarse
    return rounded


def levels(values: Floats) -> Floats:
    """Numbers as (whole) multiples of ``LEVEL``, to compare them by."""
    whole: Floats = np.rint(values * (1 / LEVEL))
    return whole


def level(value: SupportsFloat) -> int:
    """:func:`levels` of one number."""
    return round(float(value) * (1 / LEVEL))


def total(values: Floats, axis: int = -1) -> Floats:
    """The sum along an axis: the second half is added to the first, and so on with what that gives. 0 of nothing."""
    return _folded(np.add, 0.0, values, axis)


def product(values: Floats, axis: int = -1) -> Floats:
    """The product along an axis, combined in the same order. 1 of nothing."""
    return _folded(np.multiply, 1.0, values, axis)


def _folded(combine: Callable[..., Floats], of_nothing: float, values: Floats, axis: int) -> Floats:
    rest = values if axis == 0 else np.moveaxis(values, axis, 0)
    size = len(rest)
    if size <= 1:
        return rest[0] if size else np.full(rest.shape[1:], of_nothing)
    half = (size + 1) // 2
    folded = rest[:half].copy()
    front = folded[: size - half]
    combine(front, rest[half:], front)
    while (size := half) > 1:
        half = (size + 1) // 2
        front = folded[: size - half]
        combine(front, folded[half:size], front)
    result: Floats = folded[0]
    return result


_LN2 = 0.6931471805599453
_LOG2_E = 1.4426950408889634
_NODES = 4096  # the logarithm is tabulated from 1/2 to 1 at multiples of 1 over this
_STEPS = 256.0  # parts of a power of two at which the exponential is tabulated
_STEP_HIGH, _STEP_LOW = 0.002707606170588406, 3.4738805620651082e-12
"""``_LN2 / _STEPS`` as a number of 30 bits, of which small multiples are exact, and what that lacks."""


def _series_log2(nodes: Floats) -> Floats:
    """The logarithm from 1/2 to 1, to the last bits, by the series of the inverse hyperbolic tangent."""
    near = np.where(nodes < 0.7, 0.5, 1.0)
    ratio = (nodes - near) / (nodes + near)  # within 0.18
    square = ratio * ratio
    terms = np.zeros_like(nodes)
    for odd in range(25, 0, -2):
        terms = terms * square + 1 / odd
    logs: Floats = 2 * ratio * terms * _LOG2_E - (near == 0.5)
    return logs


_LOG2 = _series_log2(np.maximum(np.arange(_NODES + 1) / _NODES, 0.5))
_SQUARED, _CUBED, _FOURTH = -_LOG2_E / 2, _LOG2_E / 3, -_LOG2_E / 4


def log2(values: ArrayLike) -> Floats:
    """Logarithm to base 2 of positive numbers, right to 3e-14 of itself."""
    mantissa, exponent = np.frexp(values)
    place = mantissa * float(_NODES)
    node = np.rint(place)
    off = (place - node) / node  # the difference is exact
    near: Floats = _LOG2.take(node.astype(np.intp)) + exponent
    near += off * (_LOG2_E + off * (_SQUARED + off * (_CUBED + off * _FOURTH)))
    return near


def log(values: ArrayLike) -> Floats:
    """Natural logarithm of positive numbers."""
    return log2(values) * _LN2


def log1p(values: ArrayLike) -> Floats:
    """Logarithm of 1 plus the values, which may be tiny."""
    x = np.asarray(values, dtype=np.float64)
    near = 1 + x
    lost = near - 1  # of x, what arrived; what was lost is made up for in proportion
    return np.asarray(np.where(lost == 0, x, log(near) * (x / np.where(lost == 0, 1.0, lost))))


def _series_exp(values: Floats) -> Floats:
    """The exponential below 1, to the last bits, by its series."""
    result = np.ones_like(values)
    for n in range(24, 0, -1):
        result = 1 + result * values / n
    return result


_POWERS = _series_exp(np.arange(_STEPS) * (_LN2 / _STEPS))


def exp(values: ArrayLike) -> Floats:
    """The exponential, right to 2e-15 of itself (below -708 to what a float can say of it); as at 700 above that."""
    x = np.clip(np.asarray(values, dtype=np.float64), -800.0, 700.0)
    steps = np.rint(x * (_LOG2_E * _STEPS))
    rest = (x - steps * _STEP_HIGH) - steps * _STEP_LOW
    whole = np.floor(steps * (1 / _STEPS))
    power = _POWERS.take((steps - whole * _STEPS).astype(np.intp))
    power = power + power * (rest * (1 + rest * (1 / 2 + rest * (1 / 6 + rest * (1 / 24)))))
    return np.asarray(np.ldexp(power, whole.astype(np.intc)))


def expm1(values: ArrayLike) -> Floats:
    """The exponential less 1, for values that may be tiny."""
    x = np.asarray(values, dtype=np.float64)
    power = exp(x)
    near = (power > 0.5) & (power < 2)
    safe = np.where(near & (power != 1), power, 2.0)
    close = np.where(power == 1, x, (safe - 1) * (x / log(safe)))
    return np.asarray(np.where(near, close, power - 1))


def logaddexp(one: ArrayLike, other: ArrayLike) -> Floats:
    """Log of the sum of both exponentials."""
    a, b = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    return np.asarray(np.maximum(a, b) + log1p(exp(-np.abs(a - b))))
