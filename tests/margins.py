"""Record how much of its tolerance every float comparison of a test uses.

A comparison that passes with 0.9 of its tolerance on this processor fails on the next. With the environment variable
``SPECDEBUG_TEST_MARGINS`` naming a file, each test process appends one JSON object to it: for every place that compares
floats, the largest share of what is allowed that was used, and the test that used it. ``tools/portable.py`` runs tests
so under many settings and lists the places that come too near.
"""

import atexit
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

VARIABLE = "SPECDEBUG_TEST_MARGINS"
ROOT = Path(__file__).parent.parent

DEFAULTS = {torch.float64: (1e-7, 1e-7), torch.float32: (1.3e-6, 1e-5), torch.float16: (1e-3, 1e-5)}
"""Relative and absolute tolerance that ``torch.testing.assert_close`` takes unless it is told."""
BFLOAT16 = (1.6e-2, 1e-5)


class Margins:
    """The widest use of a tolerance, by the place in a test file that states it."""

    def __init__(self) -> None:
        self.widest: dict[str, tuple[float, str]] = {}

    def note(self, share: float, place: str) -> None:
        """Keep ``share`` of a tolerance used at ``place``, if it is the largest there so far."""
        if share > self.widest.get(place, (0.0, ""))[0]:
            self.widest[place] = (share, os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0])

    def append_to(self, path: Path) -> None:
        """Add what was seen to a file as one line; other processes may do so at the same time."""
        if self.widest:
            with path.open("a") as file:
                file.write(json.dumps(self.widest) + "\n")


def install(path: Path) -> Margins:
    """Wrap the comparisons that tests use, and write what was seen to ``path`` when the process ends."""
    margins = Margins()
    torch.testing.assert_close = _recording(torch.testing.assert_close, margins, DEFAULTS)
    torch.allclose = _recording(torch.allclose, margins, {})
    scalar = type(pytest.approx(1.0))
    equal = scalar.__eq__

    def compared(self: Any, actual: Any) -> bool:
        if isinstance(actual, float) and isinstance(self.expected, float) and self.tolerance:
            margins.note(abs(actual - self.expected) / self.tolerance, _place())
        return bool(equal(self, actual))

    scalar.__eq__ = compared  # type: ignore[method-assign]
    atexit.register(margins.append_to, path)
    return margins


def _recording(compare: Callable[..., Any], margins: Margins, defaults: dict[torch.dtype, tuple[float, float]]) -> Any:
    def recorded(actual: Any, expected: Any, *args: Any, **options: Any) -> Any:
        place = _place()
        for one, other in _pairs(actual, expected):
            rtol, atol = defaults.get(other.dtype, BFLOAT16 if defaults else (1e-5, 1e-8))
            rtol, atol = options.get("rtol", rtol), options.get("atol", atol)
            margins.note(share_used(one, other, rtol, atol), place)
        return compare(actual, expected, *args, **options)

    return recorded


def _pairs(actual: Any, expected: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Floating-point tensors of equal shape among the arguments; a comparison of others is not one of rounding."""
    if isinstance(actual, tuple | list) and isinstance(expected, tuple | list):
        return [pair for both in zip(actual, expected, strict=False) for pair in _pairs(*both)]
    if isinstance(actual, torch.Tensor) and isinstance(expected, torch.Tensor) and expected.is_floating_point():
        return [(actual, expected)] if actual.shape == expected.shape else []
    return []


def share_used(actual: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> float:
    """Return the largest part that any finite difference takes of ``atol + rtol * |expected|``; 0 where all are equal.

    A difference where nothing is allowed counts as 0: such a comparison asks for equal bits, and fails or not.
    """
    actual, expected = actual.detach().double().cpu(), expected.detach().double().cpu()
    allowed = atol + rtol * expected.abs()
    differs = (actual - expected).abs()
    shares = (differs / allowed)[allowed.isfinite() & (allowed > 0) & differs.isfinite()]
    return float(shares.max()) if shares.numel() else 0.0


def _place() -> str:
    """The innermost line of a test file on the stack, as ``file:line``."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(str(ROOT / "tests")) and not file.endswith(("margins.py", "conftest.py")):
            return f"{Path(file).relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere"
