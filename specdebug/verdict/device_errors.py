"""Failures of a CUDA device, as the harness meets them: exceptions, and what the driver printed to a worker's log.

``specdebug.logs.device`` knows the words; here is what follows from them.
"""

from __future__ import annotations

import re
from types import TracebackType

from specdebug.logs.device import DeviceFailure, fault_in

ENGINE = "specdebug.engine."

_ASKED = re.compile(r"Tried to allocate ([\d.]{1,20} \w{1,9})")
_FREE = re.compile(r"([\d.]{1,20} \w{1,9}) is free")

MEMORY_ADVICE = "lower memory.num_slots or cuda_graph.max_bs"


def device_failure(error: BaseException) -> DeviceFailure | None:
    """The failure of the device that ``error`` tells of; None when it is about something else."""
    return fault_in(str(error))


def device_lost(error: BaseException) -> bool:
    """Return True if nothing on the device can be used after ``error``."""
    failure = device_failure(error)
    return failure is not None and failure.lost


def out_of_memory(error: BaseException) -> str | None:
    """One line for an exhausted device, with what to change; None for any other error."""
    failure = device_failure(error)
    if failure is None or failure.kind != "oom":
        return None
    found = ((_ASKED.search(str(error)), "asked for"), (_FREE.search(str(error)), "free"))
    sizes = ", ".join(f"{size[1]} {word}" for size, word in found if size)
    told = f" ({sizes})" if sizes else ""
    return f"out of CUDA memory{told}: {MEMORY_ADVICE}"


def noticed_in(trace: TracebackType | None) -> str:
    """The engine's doings when a failure of the device came to light: ``prefill``, ``decode``, ``load``.

    A failed kernel is noticed at whichever later call happens to look, so the innermost function means nothing and
    is not the same every time. What the outermost engine function was called for is: the method that ``Engine.step``
    went into, ``load`` for the constructor (which captures graphs, too), else that function's own name.
    """
    names: list[str] = []
    while trace is not None and len(names) < 2:
        frame = trace.tb_frame
        if str(frame.f_globals.get("__name__", "")).startswith(ENGINE):
            names.append(frame.f_code.co_name)
        trace = trace.tb_next
    if not names:
        return "engine"
    if names[0] == "__init__":
        return "load"
    return names[-1].lstrip("_") if names[0] == "step" else names[0]
