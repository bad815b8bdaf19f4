"""Tell if a failure is the machine's (``docs/machines.md``), by its errno or by words of CUDA, torch, libc, the kernel.

CUDA's words count that a process hears before it could have broken anything, or that name hardware; an illegal
address, a failed assertion or launch is the arm's own once it has used its device.
"""

import errno
import os
import re
from dataclasses import dataclass
from typing import Literal, TypeVar

from specdebug.base.errors import SpecDebugError

Told = TypeVar("Told", bound=SpecDebugError)
Cause = Literal["device", "disk", "memory", "processes", "descriptors", "killed"]

TOLD: dict[Cause, str] = {
    "device": "the device is gone",
    "disk": "there is no room to write",
    "memory": "there is no memory left",
    "processes": "no process or thread can be started",
    "descriptors": "no more files or pipes can be opened (see ulimit -n)",
    "killed": "a worker was killed from outside",
}

_ERRNO: dict[int, Cause] = {
    errno.ENOSPC: "disk",
    errno.EDQUOT: "disk",
    errno.ENOMEM: "memory",
    errno.EMFILE: "descriptors",
    errno.ENFILE: "descriptors",
    errno.EAGAIN: "processes",  # of fork and clone; nothing here reads or writes without blocking
}

_PHRASES: dict[Cause, tuple[str, ...]] = {
    "device": (
        "no cuda-capable device is detected",
        "no cuda gpus are available",
        "found no nvidia driver",
        "cuda unknown error",
        "cuda error: initialization error",
        "[cuda]: initialization error",
        "cuda driver initialization failed",
        "cuda-capable device(s) is/are busy or unavailable",
        "cudaerrornodevice",
        "cuda_error_no_device",
        "cudaerrordevicesunavailable",
        "cuda_error_device_unavailable",
        "fallen off the bus",
        "gpu is lost",
        "driver/library version mismatch",
        "failed to initialize nvml",
        "can't initialize nvml",
        "system not yet initialized",
        "unsupported display driver / cuda driver combination",
        "uncorrectable ecc error",
        "uncorrectable nvlink error",
    ),
    "disk": ("no space left on device", "disk quota exceeded", "database or disk is full"),
    "processes": (
        "can't start new thread",
        "thread creation failed",
        "thread constructor failed",
        "pthread_create failed",
        "unable to fork",
    ),
    "descriptors": ("too many open files",),
    "memory": ("can't allocate memory", "cannot allocate memory", "not enough memory", "std::bad_alloc"),
}
_ASKED_FOR = re.compile(r"(?:tried to|unable to) allocate (\d{1,30}(?:\.\d{1,9})?) ([kmgtpe]?)(?:i?b\b|bytes)")
_LOG_TAIL = 2000
_LINE = 300


@dataclass(frozen=True)
class MachineFailure:
    """A part of the machine that failed, and the line that said so."""

    cause: Cause
    line: str

    @property
    def reason(self) -> str:
        """Return one line for a reader: ``machine: the device is gone: No CUDA GPUs are available``."""
        return f"machine: {TOLD[self.cause]}: {self.line}"


class MachineFailed(SpecDebugError):
    """The machine cannot go on with what was asked; nothing is said of the code. Ends in exit code 125."""

    exit_code = 125

    def __init__(self, failure: MachineFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def machine_failure(error: BaseException) -> MachineFailure | None:
    """Return what of the machine ``error``, or an error that it was explicitly raised from, tells of, if anything.

    An allocation of more memory than the machine has at all is not the machine's failure, in any process.
    """
    current: BaseException | None = error
    while current is not None:
        if failure := _of_one(current):
            return failure
        current = current.__cause__
    return None


def blamed(kind: type[Told], message: str, error: BaseException) -> Told:
    """Return an error of a kind for another that it was met by; it ends in exit code 125 if that is the machine's."""
    told = kind(message)
    if machine_failure(error) is not None:
        told.exit_code = MachineFailed.exit_code
    return told


def failure_in_log(log: str) -> MachineFailure | None:
    """Return what of the machine the end of a dead process's output tells of, if anything."""
    return next(filter(None, map(_of_text, reversed(log[-_LOG_TAIL:].splitlines()))), None)


def _of_one(error: BaseException) -> MachineFailure | None:
    text = str(error)
    line = " ".join(text.split())[:_LINE] or type(error).__name__
    if isinstance(error, OSError) and error.errno in _ERRNO:
        return MachineFailure(_ERRNO[error.errno], line)
    if isinstance(error, MemoryError):
        return None if _beyond_the_machine(text.lower()) else MachineFailure("memory", line)
    return _of_text(text)


def _of_text(text: str) -> MachineFailure | None:
    """Go by the first line that has one of the phrases; lines are looked at one by one, so that advice stays out."""
    for line in text.splitlines():
        low = line.lower()
        for cause, phrases in _PHRASES.items():
            if any(phrase in low for phrase in phrases) and not (cause == "memory" and _beyond_the_machine(low)):
                return MachineFailure(cause, " ".join(line.split())[:_LINE])
        if low.strip() == "memoryerror" or low.startswith("memoryerror:"):
            return MachineFailure("memory", line.strip()[:_LINE])
    return None


def _beyond_the_machine(low: str) -> bool:
    """Return True if a message tells of an allocation that no state of this machine could satisfy."""
    asked, total = _ASKED_FOR.search(low), _total_memory()
    if asked is None or total is None:
        return False
    size: float = float(asked[1]) * 1024.0 ** " kmgtpe".index(asked[2] or " ")
    return size > total


def _total_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
