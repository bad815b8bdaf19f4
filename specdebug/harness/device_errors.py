"""Failures of a CUDA device, read from what torch, Triton, FlashInfer and the driver say of them.

All of them pass on CUDA's own words, so the words are what is recognised, not the class. An assertion or a fault
destroys the context: the error appears at some later call, every call after it fails too, and nothing on the device
can be read any more. Such a failure is called *lost* here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from specdebug.async_probe import parse_message

ENGINE = "specdebug.engine."

Kind = Literal["assert", "illegal-address", "launch-failure", "oom"]

_SOURCE = r"(?:CUDA (?:driver |runtime )?[eE]rror|Triton Error \[CUDA\]).*"
_FAULTS: tuple[tuple[Kind, bool, re.Pattern[str]], ...] = (
    ("assert", True, re.compile(r"device-side assert triggered", re.IGNORECASE)),
    (
        "illegal-address",
        True,
        re.compile(r"illegal memory access was|misaligned address|operation not supported on global/shared", re.I),
    ),
    (
        "oom",
        False,
        re.compile(r"CUDA out of memory|CUBLAS_STATUS_ALLOC_FAILED|" + _SOURCE + r"out of memory"),
    ),
    (
        "launch-failure",
        True,
        re.compile(
            r"unspecified launch failure|illegal instruction was|invalid program counter|hardware stack error|"
            r"launch timed out|CUBLAS_STATUS_EXECUTION_FAILED"
        ),
    ),
    (
        "launch-failure",
        False,
        re.compile(_SOURCE + r"(?:invalid configuration argument|invalid argument|too many resources requested)"),
    ),
)
_ASKED = re.compile(r"Tried to allocate ([\d.]+ \w+)")
_FREE = re.compile(r"([\d.]+ \w+) is free")
_ASSERTION = re.compile(
    r"(?P<file>[^\s:]+):(?P<line>\d+): (?P<function>[^\n]*?): block: \[[\d, -]+\], thread: \[[\d, ]+\] "
    r"Assertion `(?P<text>[^\n]*?)`? failed"
)

MEMORY_ADVICE = "lower memory.num_slots or cuda_graph.max_bs"


@dataclass(frozen=True)
class DeviceFailure:
    """What became of the device. ``line`` is CUDA's own line, without the advice that torch puts below it."""

    kind: Kind
    lost: bool
    line: str


def device_failure(error: BaseException) -> DeviceFailure | None:
    """What ``error`` says of the device; None when it is about something else."""
    text = str(error)
    for kind, lost, pattern in _FAULTS:
        found = pattern.search(text)
        if found is not None:
            start = text.rfind("\n", 0, found.start()) + 1
            line = text[start:].split("\n", 1)[0]
            return DeviceFailure(kind, lost, " ".join(line.split()))
    return None


def device_lost(error: BaseException) -> bool:
    """Whether nothing on the device can be used after ``error``."""
    failure = device_failure(error)
    return failure is not None and failure.lost


def out_of_memory(error: BaseException) -> str | None:
    """One line for an exhausted device, with what to change; None for any other error."""
    failure = device_failure(error)
    if failure is None or failure.kind != "oom":
        return None
    asked, free = _ASKED.search(str(error)), _FREE.search(str(error))
    sizes = [f"{asked[1]} asked for"] if asked else []
    sizes += [f"{free[1]} free"] if free else []
    told = f" ({', '.join(sizes)})" if sizes else ""
    return f"out of CUDA memory{told}: {MEMORY_ADVICE}"


def noticed_in(trace: TracebackType | None) -> str:
    """What the engine was doing when a failure of the device came to light: ``prefill``, ``decode``, ``load``.

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


@dataclass(frozen=True)
class DeviceAssertion:
    """A failed assertion as the driver prints it to stderr."""

    kind: str
    site: str
    text: str


def driver_assertion(log: str) -> DeviceAssertion | None:
    """The first assertion that the driver printed to a worker's log.

    A probe's names its kind and site. Any other is ``assert`` at the kernel, which Triton names; of torch's kernels,
    often lambdas, the file is more telling.
    """
    found = _ASSERTION.search(log)
    if found is None:
        return None
    probe = parse_message(found["text"])
    if probe is not None:
        return DeviceAssertion(probe.kind, probe.site, probe.message())
    file = found["file"].rpartition("/")[2]
    site = found["function"].split("(")[0] if file.endswith(".py") else file
    return DeviceAssertion("assert", site, f"{file}: assertion `{found['text']}` failed on the device")
