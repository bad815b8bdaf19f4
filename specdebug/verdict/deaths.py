"""A worker that did not finish, as a violation: what killed it, and where it was.

``crash:<SIGNAL>``, ``oom``, ``hang`` and ``error@worker``. Where it was is read from the fault handler's dump in its
log; that is evidence for a reader, not part of the signature, which must not change with a line number.

On a GPU the cause stands in the log: a device assertion reaches the host as a bare "assert triggered", and its text,
a probe's with it, is printed by the driver. :func:`explained` puts the two together. ``logs/device.py`` knows the words
of a device's failures, here is what follows from them.
"""

import dataclasses
import os
import re
from types import TracebackType

from specdebug.logs.device import DeviceFailure, assertion_in, fault_in
from specdebug.verdict.outcome import Violation
from specdebug.workers.job import WorkerEnd
from specdebug.workers.machine_failure import MachineFailure, failure_in_log

_LAST_WORDS = ("specdebug/workers/device.py", "speak")
"""Of which the fault handler dumps a frame, too: it is what was done about the end, not what came to it."""
_FRAME = re.compile(r'^[ \t]*File "(?P<file>[^"\n]+)", line (?P<line>\d+) in (?P<name>\S+)', re.MULTILINE)


def death_of(end: WorkerEnd, step: int, stage: str) -> Violation | None:
    """The violation that an unfinished worker's end amounts to; None if it was interrupted, the machine failed, or it
    was slow: its time was over while it went on."""
    where = f"in stage {stage}, after step {step}"
    frame = innermost_frame(end.log)
    at = f"; innermost specdebug frame {frame}" if frame else ""
    assertion = assertion_in(end.log) if end.kind in ("signal", "exit") else None
    if assertion is not None:
        how = end.signal_name or f"exit status {end.status}"
        detail = f"{assertion.text}; ended by {how} in stage {stage}{at}"
        data = {"device": "cuda", "lost": True, "died": True}
        return Violation(assertion.kind, assertion.site, step, detail, data=data)
    if end.kind in ("interrupted", "refused") or death_by_machine(end) is not None:
        return None
    if end.kind == "timeout" and end.going:
        return None
    if end.kind == "lost":
        return Violation("error", "worker", step, f"the fork server died under it {where}")
    kind, site, how = {
        "timeout": ("hang", "", f"killed after {end.wall_s:.1f} s"),
        "memory": ("oom", "", f"killed at {end.peak_rss_mb:.0f} MiB resident"),
        "signal": (f"crash:{end.signal_name}", "", f"killed by {end.signal_name}"),
    }.get(end.kind, ("error", "worker", f"left with exit status {end.status} and no result"))
    return Violation(kind, site, step, f"{how} {where}{at}")


def death_by_machine(end: WorkerEnd) -> MachineFailure | None:
    """Return what of the machine ended a worker that was not done, by what the pool saw or the worker's last words."""
    if end.failure is not None:
        return end.failure
    aborted = end.kind == "signal" and end.signal_name == "SIGABRT"
    return failure_in_log(end.log) if aborted or (end.kind == "exit" and end.status != 0) else None


def explained(violation: Violation, log: str, last_step: int, coredump: str | None) -> Violation:
    """A violation that cost the worker its device, with what the parent sees: the driver's text in the ``log``, the
    last step completed, and the core dump if it is there. Any other as it is."""
    if not violation.data.get("lost"):
        return violation
    assertion = assertion_in(log)
    told = f"{violation.detail}; the last step completed is {last_step}"
    data = dict(violation.data)
    if coredump is not None and os.path.exists(coredump):
        told += f"; GPU core dump {coredump}"
        data["coredump"] = coredump
    if assertion is None:
        return dataclasses.replace(violation, detail=told, data=data)
    told = f"{assertion.text}; {told}"
    return dataclasses.replace(violation, kind=assertion.kind, site=assertion.site, detail=told, data=data)


def innermost_frame(log: str) -> str | None:
    """``file:line in function`` of specdebug's innermost frame in the last fault handler dump of a log."""
    start = log.rfind("Current thread")
    if start < 0:
        start = log.rfind("most recent call first")
    if start < 0:
        return None
    for match in _FRAME.finditer(log, start):
        speaks = match["file"].endswith(_LAST_WORDS[0]) and match["name"] == _LAST_WORDS[1]
        if "specdebug/" in match["file"] and not speaks:
            short = "specdebug/" + match["file"].rpartition("specdebug/")[2]
            return f"{short}:{match['line']} in {match['name']}"
    return None


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
    """The engine's doings when a failure of the device came to light: ``prefill``, ``decode``, ``load``. A failed
    kernel is noticed at whichever later call happens to look, so the innermost function means nothing and is not the
    same every time. What the outermost engine function was called for is: the method that ``Engine.step`` went into,
    ``load`` for the constructor (which captures graphs, too), else that function's own name."""
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
