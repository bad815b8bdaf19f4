"""An exception out of the engine, as a violation: what kind of failure it is and where it came from.

A signature must not change with a line number, so the place is the innermost engine function on the stack,
named as ``module.qualname`` below ``specdebug.engine`` or its ``textbook``.
"""

from __future__ import annotations

import re
from types import TracebackType

from specdebug.targets.serving import SessionFailed
from specdebug.verdict.device_errors import ENGINE, device_failure, noticed_in, out_of_memory
from specdebug.verdict.outcome import Violation

SHARED = ("kernels.", "attention.", "gpu.", "memory.", "model.", "async_probe.")
"""Modules below the engine that every stage calls."""
_OUT_OF_RANGE = re.compile(r"out of (bounds|range)|illegal memory access", re.IGNORECASE)
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory", re.IGNORECASE)


def violation_of(error: BaseException, step: int) -> Violation:
    """Classify ``error``, raised during ``step``.

    In this order: the failure of a session's engine elsewhere, which says what it is; an asserting probe (its message
    names kind and site), the engine's own errors that carry a site, a failure of the device (see
    ``device_errors.py``; ``data`` says whether the device is lost), memory exhausted, an index outside its tensor (on a
    GPU an illegal address), a failed ``assert``, anything else.
    """
    from specdebug.async_probe import parse_message
    from specdebug.engine.errors import IllegalAddress, PlanAssertion

    text = " ".join(str(error).split())
    detail = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SessionFailed):
        return Violation(error.kind, error.site, step, text)
    probe = parse_message(str(error))
    if probe is not None:
        return Violation(probe.kind, probe.site, step, probe.message(), count=probe.count or 1)
    if isinstance(error, IllegalAddress | PlanAssertion):
        kind = "assert" if isinstance(error, PlanAssertion) else "illegal-address"
        caller = _caller(error.__traceback__)
        called = f"; called by {caller}" if caller else ""
        return Violation(kind, error.site, step, f"{text}{called}", data={"caller": caller} if caller else {})
    device = device_failure(error)
    if device is not None:
        memory = out_of_memory(error)
        where, told = ("cuda", memory) if memory else (noticed_in(error.__traceback__), device.line)
        return Violation(device.kind, where, step, told, data={"device": "cuda", "lost": device.lost})
    if out_of_host_memory(error):
        return Violation("oom", "", step, detail)
    kind = "assert" if isinstance(error, AssertionError) else "error"
    if isinstance(error, IndexError | RuntimeError) and _OUT_OF_RANGE.search(text):
        kind = "illegal-address"
    return Violation(kind, engine_site(error.__traceback__), step, detail)


def beyond_the_machine(error: BaseException) -> str | None:
    """One line for memory that this machine does not have; ask ``machine_failure`` first for what is used up."""
    if device_failure(error) is not None or not out_of_host_memory(error):
        return None
    return f"the engine asks for more memory than this machine has: {' '.join(str(error).split())}"


def out_of_host_memory(error: BaseException) -> bool:
    """Return True if ``error``, which is not about a device, says that an allocation failed."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error))))


def engine_site(trace: TracebackType | None) -> str:
    """``module.qualname`` of the innermost engine frame, ``engine`` when there is none."""
    return (_engine_sites(trace) or ["engine"])[-1]


def _caller(trace: TracebackType | None) -> str:
    """The innermost engine function on a stack that is not in what all stages share, as a kernel is; or empty."""
    return next((site for site in reversed(_engine_sites(trace)) if not site.startswith(SHARED)), "")


def _engine_sites(trace: TracebackType | None) -> list[str]:
    """Functions of the engine on a stack, the innermost last."""
    sites = []
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.startswith(ENGINE):
            module = module.removeprefix(ENGINE).removeprefix("textbook.")
            sites.append(f"{module}.{trace.tb_frame.f_code.co_qualname}")
        trace = trace.tb_next
    return sites
