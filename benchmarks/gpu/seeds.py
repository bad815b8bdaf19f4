"""The probes as they are commonly written, a few torch operations and an assertion each, in place of ours.

``use(True)`` puts them where the engine's modules look our probes up, ``use(False)`` takes them out again. A graph
keeps those that it was captured with; what runs eagerly takes what is in place at the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from specdebug import async_probe

_WHERE = "specdebug.engine"


def detect_nan(tensor: Tensor | None, site: str, at: Tensor | None = None) -> None:
    """No NaN in a tensor, or in rows ``at`` of its dimension 1."""
    if tensor is None or not tensor.numel() or not tensor.is_floating_point():
        return
    values = _rows(tensor, at)
    torch._assert_async(~torch.any(torch.isnan(values)), f"NaN at {site}")


def detect_inf(tensor: Tensor | None, site: str, at: Tensor | None = None) -> None:
    """No infinity in a tensor, or in rows ``at`` of its dimension 1."""
    if tensor is None or not tensor.numel() or not tensor.is_floating_point():
        return
    values = _rows(tensor, at)
    torch._assert_async(~torch.any(torch.isinf(values)), f"infinity at {site}")


def detect_nonfinite(tensor: Tensor | None, site: str, at: Tensor | None = None) -> None:
    """Both, one after the other."""
    detect_nan(tensor, site, at)
    detect_inf(tensor, site, at)


def detect_oob(tensor: Tensor | None, low: float, high: float, site: str, relative_to: Tensor | None = None) -> None:
    """``low <= element < high``, by the least and the greatest."""
    if tensor is None or not tensor.numel():
        return
    values = tensor if relative_to is None else tensor - relative_to
    if not values.numel():
        return
    torch._assert_async(values.min() >= low, f"below {low} at {site}")
    torch._assert_async(values.max() < high, f"not below {high} at {site}")


def detect_page_aligned(tensor: Tensor | None, page_size: int, site: str) -> None:
    """Every element is a multiple."""
    if tensor is None or not tensor.numel():
        return
    torch._assert_async(torch.all(tensor % page_size == 0), f"not a multiple of {page_size} at {site}")


@contextmanager
def one_by_one() -> Iterator[None]:
    """A block of probes that run each when it is made."""
    yield


_OURS_AND_THEIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "maybe_detect_nan": (async_probe.maybe_detect_nan, detect_nan),
    "maybe_detect_inf": (async_probe.maybe_detect_inf, detect_inf),
    "maybe_detect_nonfinite": (async_probe.maybe_detect_nonfinite, detect_nonfinite),
    "maybe_detect_oob": (async_probe.maybe_detect_oob, detect_oob),
    "maybe_detect_page_aligned": (async_probe.maybe_detect_page_aligned, detect_page_aligned),
    "grouped": (async_probe.grouped, one_by_one),
}


def use(theirs: bool) -> None:
    """Put the expressions in place of our probes, or our probes back, in every module of the engine that has them.

    Also in the package of the probes, for modules that are yet to be imported.
    """
    for module in [async_probe, *_engine_modules()]:
        for name, functions in _OURS_AND_THEIRS.items():
            if vars(module).get(name) is functions[not theirs]:
                setattr(module, name, functions[theirs])


def _engine_modules() -> list[ModuleType]:
    return [module for name, module in list(sys.modules.items()) if name == _WHERE or name.startswith(f"{_WHERE}.")]


def _rows(tensor: Tensor, at: Tensor | None) -> Tensor:
    return tensor if at is None else tensor.index_select(1, at.reshape(-1))
