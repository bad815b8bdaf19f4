"""The probes, and the process-wide state behind them.

A probe that is off returns after one look at ``_active``. Under ``torch.compile`` a live probe becomes one
call of a custom operator, which runs this module's eager code: nothing here has to be traceable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import checks
from .checks import Bound, bound_text
from .gate import ASSERT, OFF, Gate, Rule, mode_from_environment
from .recorder import Recorder
from .violation import Violation

DEFAULT_CAPACITY = 1024

_gate = Gate(mode_from_environment())
_active = _gate.active
_recorder = Recorder(DEFAULT_CAPACITY)
_reached: dict[str, int] = {}


def maybe_detect_nan(tensor: torch.Tensor | None, site: str) -> None:
    """Probe that no element is NaN. Integer tensors hold none."""
    if not _active or tensor is None:
        return
    _probe("nan", tensor, site, 0, 0, None)


def maybe_detect_inf(tensor: torch.Tensor | None, site: str) -> None:
    """Probe that no element is infinite. Integer tensors hold none."""
    if not _active or tensor is None:
        return
    _probe("inf", tensor, site, 0, 0, None)


def maybe_detect_oob(
    tensor: torch.Tensor | None,
    low: Bound,
    high: Bound,
    site: str,
    relative_to: torch.Tensor | None = None,  # not keyword-only: CPython 3.11 makes such calls half as dear
) -> None:
    """Probe that ``low <= element < high``, of ``tensor - relative_to`` (broadcast) if that is given.

    The two bounds are probed apart, so a finding names the one that failed. A NaN is below ``low``.
    """
    if not _active or tensor is None:
        return
    _probe("oob", tensor, site, low, high, relative_to)


def maybe_detect_page_aligned(tensor: torch.Tensor | None, page_size: int, site: str) -> None:
    """Probe that every element is a multiple of ``page_size``."""
    if not _active or tensor is None:
        return
    _probe("page_aligned", tensor, site, 0, page_size, None)


def configure(mode: str, rules: Sequence[Rule] = (), *, capacity: int = DEFAULT_CAPACITY) -> None:
    """Choose what probes do from now on (instead of what the environment said), and :func:`reset`.

    Args:
        mode: ``off``, ``assert`` or ``record``: what a rule without a mode of its own means. Off is off.
        rules: of those that cover a probe the last one decides; a probe that none covers is off. No rules:
            every probe runs in ``mode``.
        capacity: findings a ring holds; the ring of a device is made anew.

    Raises:
        ValueError: unknown mode or kind, or a capacity below 1.
    """
    global _gate, _active, _recorder
    if capacity < 1:
        raise ValueError(f"capacity {capacity} must be at least 1")
    _gate = Gate(mode, rules)
    _active = _gate.active
    _recorder = Recorder(capacity)
    _reached.clear()


def reset() -> None:
    """Forget findings, totals, counts and the step; modes stay. Captured graphs must be captured again."""
    global _recorder
    _recorder = Recorder(_recorder.capacity)
    _reached.clear()


def prepare(device: torch.device | str) -> None:
    """Make the ring of ``device``; needed only before a graph capture that holds the device's first probe."""
    _recorder.ring(torch.empty(0, device=device).device)


def set_step(step: int) -> None:
    """Findings from now on belong to ``step``."""
    _recorder.set_step(step)


def drain() -> list[Violation]:
    """Take the findings of record mode, in program order. Waits for the device."""
    return _recorder.drain()


def totals() -> dict[tuple[str, str], int]:
    """Bad elements by (site, kind), exact even where the ring overflowed. Waits for the device."""
    return _recorder.totals()


def reached() -> dict[str, int]:
    """How often a live probe of each site had something to look at. A captured graph counts once."""
    return dict(_reached)


def _probe(
    kind: str, tensor: torch.Tensor, site: str, low: Bound, high: Bound, relative_to: torch.Tensor | None
) -> None:
    if torch.compiler.is_compiling():
        operator = getattr(torch.ops, _NAMESPACE).detect
        operator(_ticks, tensor, kind, site, low, high, relative_to)
    else:
        _detect(kind, tensor, site, low, high, relative_to)


def _detect(
    kind: str, tensor: torch.Tensor, site: str, low: Bound, high: Bound, relative_to: torch.Tensor | None
) -> None:
    mode = _gate.mode(site, kind)
    if mode == OFF:
        return
    values = checks.subject(tensor, relative_to)
    if not checks.applies(kind, values):
        return
    _reached[site] = _reached.get(site, 0) + 1
    on_cpu = values.device.type == "cpu"
    if on_cpu and checks.is_clean(kind, values, low, high):
        return
    for part in checks.parts(kind, values, low, high):
        if mode == ASSERT:
            _assert_none(site, kind, values, part, with_details=on_cpu)
        else:
            _recorder.write(site, kind, values, part)


def _assert_none(
    site: str, kind: str, values: torch.Tensor, part: checks.Part, *, with_details: bool
) -> None:
    found = Violation(site, kind, bound=bound_text(part.phrase, part.limit))
    if with_details and bool(part.bad.any()):
        bad = part.bad.reshape(-1)
        index = int(bad.nonzero()[0])
        found = Violation(
            site=site,
            kind=kind,
            step=_recorder.step,
            index=index,
            value=values.reshape(-1)[index].item(),
            count=int(bad.sum()),
            bound=found.bound,
        )
    torch._assert_async(~part.bad.any(), found.message())


def _detect_operator(
    ticks: torch.Tensor,
    values: torch.Tensor,
    kind: str,
    site: str,
    low: Bound,
    high: Bound,
    relative_to: torch.Tensor | None,
) -> None:
    ticks.add_(1)
    _detect(kind, values, site, low, high, relative_to)


def _detect_nothing(*_: object) -> None:
    """Tracing has no values to look at."""


# A compiled graph keeps an operator only if it changes something: each call adds one to ``_ticks``.
_ticks = torch.zeros(1, dtype=torch.int64)
_NAMESPACE = __name__.replace(".", "_")  # a copy of this package elsewhere gets an operator of its own
_torch_library: Any = torch.library  # torch annotates only some of it
_library = _torch_library.Library(_NAMESPACE, "FRAGMENT")
_library.define(
    "detect(Tensor(a!) ticks, Tensor values, str kind, str site, Scalar low, Scalar high, "
    "Tensor? relative_to) -> ()"
)
_library.impl("detect", _detect_operator, "CompositeExplicitAutograd")
_torch_library.register_fake(f"{_NAMESPACE}::detect", _detect_nothing, lib=_library)
