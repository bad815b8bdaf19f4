"""The facts of this machine and installation, examined from a worker so that nothing broken can hurt the caller."""

import os
import platform
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from specdebug import __version__
from specdebug.base.assets import NAMES, checkpoint_path
from specdebug.base.errors import SpecDebugError
from specdebug.scenario.library import Library
from specdebug.workers.job import AT_RISK, GPU_MEMORY_MB, VARIABLE, Job, at_risk_limit, slot_folder
from specdebug.workers.pool import WorkerPool, run_one
from specdebug.workers.system import cpu_count


def examine(pool: WorkerPool, library: Library) -> tuple[dict[str, Any], list[str]]:
    """Return facts by name, in the order to show them, and problems, one line each."""
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
    loads: dict[str, Callable[[], Any]] = {
        "scenarios": lambda: len(library.scenarios()),
        "toggles": lambda: len(library.all_toggles()),
        "probe packs": lambda: len(library.all_packs()),
        **{f"checkpoint {name}": partial(lambda name: str(checkpoint_path(name)), name) for name in NAMES},
    }
    for name, load in loads.items():
        try:
            facts[name] = load()
        except SpecDebugError as error:
            problems.append(str(error))
    return facts, problems


def _worker_facts(pool: WorkerPool, problems: list[str]) -> dict[str, Any]:
    try:
        job = Job("doctor", "specdebug.workers.stack:describe", None, timeout_s=60, uses_gpu=True)
        events, end = run_one(pool, job)
    except SpecDebugError as error:
        problems.append(str(error))
        return {}
    reports = {event["event"]: event for event in events}
    if "machine" not in reports:
        last = end.log.strip().splitlines()[-1:] or [f"exit status {end.status}"]
        problems.append(f"a worker could not say what torch finds: {last[0]}")
    return _gpu_facts(reports.get("packages", {}), reports.get("machine"))


def _gpu_facts(packages: Mapping[str, Any], found: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the facts of the GPU stack. That there is none is no problem: everything runs on the CPU."""
    limit = f"enforced; on a GPU {GPU_MEMORY_MB:.0f} MiB above the scenario's"
    limited = os.path.exists("/proc/self/statm")
    facts: dict[str, Any] = {"worker memory limit": limit if limited else "no /proc: not enforced"}
    if found is not None:
        built = f"built for CUDA {found['cuda']}" if found["cuda"] else "built without CUDA"
        facts["torch"] = f"{found['torch']} ({built})"
        gpus = [f"{gpu['name']} (sm {gpu['capability']}, {gpu['memory_mb']} MiB)" for gpu in found["gpus"]]
        facts["GPUs"] = gpus or "none; everything runs on the CPU"
        if gpus:
            facts["arms at risk on a GPU"] = _at_risk()
    for name in ("driver", "nvcc", "triton", "flashinfer", "flash_attn"):
        if name in packages:
            facts[_GPU_PACKAGES.get(name, name)] = packages[name] or "not installed"
    if found is not None:
        if found["gpus"] and packages.get("triton") is None:
            facts["GPUs"] = f"{', '.join(facts['GPUs'])}, but without triton everything runs on the CPU"
        for plan, executor in found["executors"].items():
            facts[f"plan {plan}"] = executor
    return facts


_GPU_PACKAGES = {"driver": "NVIDIA driver", "flash_attn": "flash-attn"}


def _at_risk() -> str:
    """Return the bound on arms that may destroy a GPU's context, with advice."""
    limit = at_risk_limit()
    bound = f"{limit} at a time, by slots in {slot_folder('gpu')}"
    if limit > AT_RISK:
        return f"{bound}; a GPU may be lost when more than {AT_RISK} contexts die at a time: unset {VARIABLE}"
    return f"{bound}; {VARIABLE} changes it"


def _memory() -> str:
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return "unknown"
    return f"{pages * size / 2**30:.1f} GiB"
