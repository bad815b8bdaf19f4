"""A worker takes its device, says what it is, and leaves it when it has died.

The fork server never touches CUDA (a context does not survive a fork), so each worker makes its own, and only when an
arm asks for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from typing import Any, NoReturn

from specdebug.base.errors import SpecDebugError
from specdebug.workers.arithmetic import arithmetic
from specdebug.workers.coredump import arrange_coredump
from specdebug.workers.machine_failure import MachineFailed, MachineFailure
from specdebug.workers.stack import driver_version, executor_of, versions
from specdebug.workers.wire import Sink


class DeviceUnavailable(SpecDebugError):
    """The device an engine asks for is not there."""


def claim(device: str, plan: str, dtype: str, label: str) -> dict[str, Any]:
    """Make ``device`` (``cpu``, ``cuda``, ``cuda:N``) this process's own, and return the facts of the stack.

    When core dumps are wanted, these name the file one would be written to (``label`` is part of its name).

    Raises DeviceUnavailable when there is no such device or nothing to run on it with; MachineFailed when it should be
    there and does not answer: whatever fails before this process has used it is not this process's doing.
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
        if driver_version() is not None and "CUDA_VISIBLE_DEVICES" not in os.environ:
            raise MachineFailed(MachineFailure("device", "NVIDIA's driver is loaded, but shows no device"))
        raise DeviceUnavailable("there is no CUDA device here that torch can use; use cpu")
    index = torch.device(device).index or 0
    if index >= count:
        known = ", ".join(f"cuda:{n}" for n in range(count))
        raise DeviceUnavailable(f"there is no {device}; torch finds {known}")
    if importlib.util.find_spec("triton") is None:
        raise DeviceUnavailable("on CUDA the engine runs Triton kernels, and triton is not installed; use cpu")
    properties = _first_use(index)
    facts["name"] = properties.name
    facts["capability"] = f"{properties.major}.{properties.minor}"
    facts["executor"] = executor_of(plan, device, dtype, facts, facts["capability"])
    return facts


def answer(device: str, sink: Sink) -> None:
    """Report ``answers`` once a fresh process has taken ``device`` and computed on it. Raises as :func:`claim`."""
    import torch

    _first_use(torch.device(device).index or 0)
    sink.emit("answers")


def _first_use(index: int) -> Any:
    """Take a device, compute something tiny on it and wait for that; return its properties.

    Raises MachineFailed when that fails. Memory that ran out passes through: the device is there.
    """
    import torch

    try:
        torch.cuda.set_device(index)  # where kernels that are not told otherwise are launched
        properties = torch.cuda.get_device_properties(index)
        _launch(index)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:  # torch asserts that there is a driver
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise MachineFailed(MachineFailure("device", line)) from error
    return properties


def _launch(index: int) -> None:
    """Allocate, launch a kernel and wait for it, and leave the allocator as empty as it was."""
    import torch

    torch.ones(1, device=f"cuda:{index}").add_(1)
    torch.cuda.synchronize(index)
    torch.cuda.empty_cache()


def leave_now(status: int = 0) -> NoReturn:
    """End this process without tearing anything down.

    After a device assertion or a fault every CUDA call fails, and destructors of graphs and pools make such calls: they
    could hang, or abort the process. C streams are flushed for what the driver may still have printed.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)
    os._exit(status)
