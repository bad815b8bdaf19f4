"""Tensors kept in full, for a second run that looks at known places: one file for each call, and how two compare."""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Place = tuple[int, int]
"""A step, and which of its calls."""

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""By an engine's dtype: how far rounding moves a number, as a part of it."""
ROUNDINGS = 16
"""Roundings of a layer: norms, q, k, v, rotations, attention, projections, residuals."""
LARGEST_LOGIT = 10.0
"""About that of a row. A logit that moves by a part of it moves its probability by that part times its size."""
PROBABILITIES = ("draft_extend.topk_p", "draft_graph.replay.topk_p", "draft.organize.scores", "sampler.*.probs")


def tolerance(site: str, dtype: str, layers: int, width: int) -> float:
    """The gap that two values of a row may have, as a part of the row's largest, if only the batch's shape differs.

    Rounding errors are independent of each other, so their sum grows with the root of their number (Higham and Mary, A
    New Approach to Probabilistic Rounding Error Analysis, 2019). In half precision sums are taken in float32 and each
    operation rounds its result once; in float32 the terms of the sums are rounded, as many as the model is wide.

    ``dtype``: the engine's; a tensor may have a finer one than what it was computed from. Others have no tolerance.
    ``layers``, ``width``: of the target, and of its hidden states.
    """
    terms = width if dtype == "float32" else 1
    found = UNIT.get(dtype, 0.0) * math.sqrt(ROUNDINGS * layers * terms)
    sharp = any(fnmatch.fnmatchcase(site, pattern) for pattern in PROBABILITIES)
    return found * LARGEST_LOGIT if sharp else found


@dataclass(frozen=True)
class ValueDifference:
    """Two shares of a tensor that differ. ``index``: of the first element that does; its values ``left`` and ``right``.

    ``count``: elements that differ. ``gap``: the widest difference, as a part of the largest value of its row; infinite
    where one of the two is no finite number.
    """

    index: tuple[int, ...]
    left: Any
    right: Any
    count: int
    size: int
    gap: float

    def to_dict(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in vars(self).items()} | {"index": list(self.index)}


def keep(folder: Path, place: Place, rows: Tensor) -> None:
    """Write a call's rows to a file of their own. Waits for the device."""
    import torch

    rows = rows.detach()
    if rows.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        rows = rows.float()  # numpy has no such types; float32 holds their values
    keep_array(folder, place, rows.cpu().numpy())


def keep_array(folder: Path, place: Place, rows: np.ndarray) -> None:
    """As :func:`keep`, of what is an array."""
    np.save(_path(folder, place), rows)


def kept(folder: Path, place: Place) -> np.ndarray | None:
    """The tensor kept of a call, None if the run never came to it."""
    path = _path(folder, place)
    return np.load(path) if path.exists() else None


def difference(left: np.ndarray, right: np.ndarray) -> ValueDifference | None:
    """The difference of two arrays, of their shapes first; None if they hold the same (a NaN is the same as a NaN)."""
    if left.shape != right.shape:
        return ValueDifference((), list(left.shape), list(right.shape), 1, 1, float("inf"))
    differs = left != right
    if left.dtype.kind == "f":
        differs &= ~(np.isnan(left) & np.isnan(right))
        differs |= (np.signbit(left) != np.signbit(right)) & (left == right)  # zeros whose bits differ
    if not differs.any():
        return None
    index = tuple(map(int, np.unravel_index(int(differs.argmax()), differs.shape)))
    pair = left[index].item(), right[index].item()
    return ValueDifference(index, *pair, int(differs.sum()), differs.size, _gap(left, right))


def _gap(left: np.ndarray, right: np.ndarray) -> float:
    if left.dtype.kind != "f":
        return float("inf")
    rows = left.shape[0]
    a, b = (each.reshape(rows, -1).astype(np.float64) for each in (left, right))
    odd = ~(np.isfinite(a) & np.isfinite(b))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if (odd & ~same).any():
        return float("inf")
    a, b = (np.where(odd, 0.0, each) for each in (a, b))
    largest = np.maximum(np.abs(a), np.abs(b)).max(axis=1, initial=0.0)
    widest = np.abs(a - b).max(axis=1, initial=0.0)
    gaps = np.divide(widest, largest, out=np.zeros_like(widest), where=largest > 0)
    return float(gaps.max(initial=0.0))


def _plain(value: Any) -> Any:
    """The value as JSON can say it: what is not finite as text."""
    return value if not isinstance(value, float) or np.isfinite(value) else str(value)


def _path(folder: Path, place: Place) -> Path:
    return folder / f"{place[0]}-{place[1]}.npy"
