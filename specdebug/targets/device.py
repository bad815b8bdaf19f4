"""A worker's device: taking it, saying what it is, and leaving it when it has died.

Runs in workers only. The fork server never touches CUDA (a context does not survive a fork), so each worker makes
its own, and only when an arm asks for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from typing import Any, NoReturn

from specdebug.errors import SpecDebugError
from specdebug.targets.arithmetic import arithmetic
from specdebug.targets.coredump import arrange_coredump
from specdebug.targets.stack import executor_of, versions


class DeviceUnavailable(SpecDebugError):
    """The device an engine asks for is not there."""


def claim(device: str, plan: str, dtype: str, label: str) -> dict[str, Any]:
    """Make ``device`` (``cpu``, ``cuda``, ``cuda:N``) this process's own, and describe it.

    Returns what the results say of the stack: device and its name, versions, plan, executor, dtype, what its
    sums depend on and, when core
    dumps are wanted, the file one would be written to (``label`` is part of its name).

    Raises DeviceUnavailable, in one line, when there is no such device or nothing to run on it with.
    """
    facts: dict[str, Any] = {"device": device, "name": "CPU", **versions()}
    facts |= {"backend": plan, "executor": executor_of(plan, device, dtype, facts), "dtype": dtype}
    facts["arithmetic"] = arithmetic()
    if device == "cpu":
        return facts
    facts["coredump"] = arrange_coredump(label)  # the driver reads its settings when the context is made
    import torch

    if torch.version.cuda is None:
        raise DeviceUnavailable(f"there is no CUDA: this torch ({torch.__version__}) is built without it; use cpu")
    count = torch.cuda.device_count()
    if count == 0:
        raise DeviceUnavailable("there is no CUDA device here that torch can use; use cpu")
    index = torch.device(device).index or 0
    if index >= count:
        known = ", ".join(f"cuda:{n}" for n in range(count))
        raise DeviceUnavailable(f"there is no {device}; torch finds {known}")
    if importlib.util.find_spec("triton") is None:
        raise DeviceUnavailable("on CUDA the engine runs Triton kernels, and triton is not installed; use cpu")
    torch.cuda.set_device(index)  # where kernels that are not told otherwise are launched
    properties = torch.cuda.get_device_properties(index)
    facts["name"] = properties.name
    facts["capability"] = f"{properties.major}.{properties.minor}"
    facts["executor"] = executor_of(plan, device, dtype, facts, facts["capability"])
    return facts


def leave_now() -> NoReturn:
    """End this process without tearing anything down.

    After a device assertion or a fault every CUDA call fails, and destructors of graphs and pools make such calls:
    they could hang, or abort the process and so hide what had been reported. Everything reported is on its way
    already; C streams are flushed for what the driver may still have printed.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)
    os._exit(0)
