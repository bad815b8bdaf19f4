"""The messages of torch, Triton, FlashInfer and the driver about a CUDA device.

All of them pass on CUDA's own words, so the words are recognised in any message. An assertion or a fault destroys
the context: the error appears at some later call, every call after it fails too, and nothing on the device can be read
any more. The device is then *lost*.
"""

from dataclasses import dataclass
from typing import Literal

from specdebug.async_probe import parse_message
from specdebug.logs.patterns import bounded, compiled

Kind = Literal["assert", "illegal-address", "launch-failure", "oom"]

_SOURCE = rb"(?:CUDA (?:driver |runtime )?[eE]rror|Triton Error \[CUDA\])[^\n]*"

FAULTS: tuple[tuple[Kind, bool, bytes], ...] = (
    ("assert", True, rb"(?i:device-side assert triggered)|CUDA_ERROR_ASSERT\b"),
    (
        "illegal-address",
        True,
        rb"(?i:illegal memory access was|misaligned address|operation not supported on global/shared)|"
        rb"CUDA_ERROR_(?:ILLEGAL|MISALIGNED)_ADDRESS",
    ),
    (
        "oom",
        False,
        rb"CUDA out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY|" + _SOURCE + rb"out of memory",
    ),
    (
        "launch-failure",
        True,
        rb"unspecified launch failure|illegal instruction was|invalid program counter|hardware stack error|"
        rb"launch timed out|CUBLAS_STATUS_EXECUTION_FAILED|CUDA_ERROR_(?:LAUNCH_FAILED|ILLEGAL_INSTRUCTION)",
    ),
    (
        "launch-failure",
        False,
        _SOURCE + rb"(?:invalid configuration argument|invalid argument|too many resources requested)",
    ),
)
"""Kind, True if the device is lost, and the words for it, in the order in which they are looked for."""

FAULT_WORDS = (
    b"evice-side assert", b"EVICE-SIDE ASSERT", b"llegal memory access", b"LLEGAL MEMORY ACCESS", b"isaligned address",
    b"ISALIGNED ADDRESS", b"global/shared", b"CUDA", b"launch failure", b"illegal instruction",
    b"invalid program counter", b"hardware stack error", b"launch timed out", b"CUBLAS_STATUS_",
)  # fmt: skip
"""One of these is in every line that one of ``FAULTS`` is in, but for odd mixtures of upper and lower case."""

ASSERTION = rb"([^\s:]+):\d+: ([^\n]*?): block: \[[\d, -]+\], thread: \[[\d, ]+\] Assertion `([^\n]*?)`? failed"
"""A failed assertion as the driver prints it: file, function, text."""

_FAULTS = tuple((kind, lost, compiled(pattern)) for kind, lost, pattern in FAULTS)
_ASSERTION = compiled(ASSERTION)


@dataclass(frozen=True)
class DeviceFailure:
    """A failure of the device. ``line`` is CUDA's own line, without the advice that torch puts below it."""

    kind: Kind
    lost: bool
    line: str


@dataclass(frozen=True)
class DeviceAssertion:
    """A failed assertion as the driver prints it to stderr."""

    kind: str
    site: str
    text: str


def fault_in(text: str) -> DeviceFailure | None:
    """The failure of the device that a message is about; None when it is about something else."""
    data = bounded(text.encode("utf-8", "replace"))
    for kind, lost, pattern in _FAULTS:
        if found := pattern.search(data):
            line = data[data.rfind(b"\n", 0, found.start()) + 1 :].partition(b"\n")[0]
            return DeviceFailure(kind, lost, " ".join(line.decode("utf-8", "replace").split()))
    return None


def assertion_in(log: str) -> DeviceAssertion | None:
    """The first assertion that the driver printed to a log. A probe's names its kind and site. Any other is ``assert``
    at the kernel, which Triton names; of torch's kernels, often lambdas, the file is more telling."""
    found = _ASSERTION.search(bounded(log.encode("utf-8", "replace"), (b"Assertion `",)))
    if found is None:
        return None
    file, function, text = (found[group].decode("utf-8", "replace") for group in (1, 2, 3))
    if probe := parse_message(text):
        return DeviceAssertion(probe.kind, probe.site, probe.message())
    file = file.rpartition("/")[2]
    site = function.split("(")[0] if file.endswith(".py") else file
    return DeviceAssertion("assert", site, f"{file}: assertion `{text}` failed on the device")
