"""What this machine and installation offer, examined from a worker so that nothing broken can hurt the
caller."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from specdebug import __version__
from specdebug.assets import NAMES, checkpoint_path
from specdebug.errors import SpecDebugError
from specdebug.harness.library import Library
from specdebug.targets.pool import Job, WorkerPool, run_one
from specdebug.targets.system import cpu_count


def examine(pool: WorkerPool, library: Library) -> tuple[dict[str, Any], list[str]]:
    """Facts by name, in the order to show them, and what is wrong, one line each."""
    problems: list[str] = []
    facts: dict[str, Any] = {
        "specdebug": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "cores": cpu_count(),
        "memory": _memory(),
    }
    facts |= _worker_facts(pool, problems)
    facts["content folders"] = [str(path) for path in library.folders]
    for kind, load in (
        ("scenarios", library.scenarios),
        ("toggles", library.all_toggles),
        ("probe packs", library.all_packs),
    ):
        try:
            facts[kind] = len(load())
        except SpecDebugError as error:
            problems.append(str(error))
    for name in NAMES:
        try:
            facts[f"checkpoint {name}"] = str(checkpoint_path(name))
        except SpecDebugError as error:
            problems.append(str(error))
    return facts, problems


def _worker_facts(pool: WorkerPool, problems: list[str]) -> dict[str, Any]:
    """What a worker says of torch and of GPUs."""
    try:
        job = Job("doctor", "specdebug.targets.inspect:describe", None, timeout_s=60)
        events, end = run_one(pool, job)
    except SpecDebugError as error:
        problems.append(str(error))
        return {}
    found = next((event for event in events if event["event"] == "machine"), None)
    if found is None:
        last = end.log.strip().splitlines()[-1:] or [f"exit status {end.status}"]
        problems.append(f"a worker could not say what torch finds: {last[0]}")
        return {}
    gpus = [f"{gpu['name']} (sm {gpu['capability']}, {gpu['memory_mb']} MiB)" for gpu in found["gpus"]]
    return {
        "torch": found["torch"],
        "GPUs": gpus or "none; engines run on the CPU",
        "GPU packages": found["gpu_packages"] or "none",
        "attention": "torch reference executor of the flashinfer, fa3 and triton plans",
        "worker memory limit": "enforced" if os.path.exists("/proc/self/statm") else "no /proc: not enforced",
    }


def _memory() -> str:
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return "unknown"
    return f"{pages * size / 2**30:.1f} GiB"
