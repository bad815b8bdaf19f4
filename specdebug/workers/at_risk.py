"""A bound on the arms that may destroy a GPU's context at a time, over all pools and processes of a user.

A context that dies of an assertion or an illegal address is torn down by the driver. With sixteen such deaths at a
time an H100 was gone for every process ("No CUDA GPUs are available"); with four it never was (2026-11-25). So an arm
that reverts a fix or injects faults on a GPU needs one of a few slots of that GPU (``slots.py``). The parent holds it,
until its worker has been reaped and so its context is gone.
"""

from __future__ import annotations

import os
import re

from specdebug.base.errors import SpecDebugError
from specdebug.workers.slots import Slots

VARIABLE = "SPECDEBUG_GPU_AT_RISK"
AT_RISK = 4
"""Arms that may destroy a context of one GPU at a time, unless the variable says otherwise."""


class AtRiskError(SpecDebugError):
    """The variable is no whole number from 1."""


def at_risk_limit() -> int:
    """Return how many arms may be at risk on one GPU at a time. Raises AtRiskError."""
    told = os.environ.get(VARIABLE, "").strip()
    if not told:
        return AT_RISK
    if not re.fullmatch(r"[1-9][0-9]{0,3}", told):
        raise AtRiskError(f"{VARIABLE} must be a whole number from 1 to 9999, not {told!r}")
    return int(told)


def slots_at_risk(device: str) -> Slots:
    """Return the slots of a device, ``cuda`` or ``cuda:N``. Raises AtRiskError."""
    return Slots("gpu", _physical(device), at_risk_limit())


def _physical(device: str) -> str:
    """Return the name of the GPU that ``CUDA_VISIBLE_DEVICES`` puts in this place."""
    index = int(device.partition(":")[2] or 0)
    visible = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    return visible[index] if index < len(visible) else str(index)
