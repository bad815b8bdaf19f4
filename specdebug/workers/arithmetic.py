"""The facts that the last bits of a sum depend on, read in workers: the processor, torch's view of it, the settings."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from specdebug.workers.system import text_of

SETTINGS = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES",
)
"""Environment variables by which libraries choose among their kernels."""

_CPUINFO = Path("/proc/cpuinfo")
_BLAS = re.compile(r"Math Kernel Library Version (\S+)|BLAS_INFO=(\w+)")


def arithmetic() -> dict[str, str]:
    """Return the processor, torch's name for what it can do, BLAS, numpy, threads, and the settings that are set."""
    import numpy
    import torch

    found = _BLAS.search(torch.__config__.show())
    settings = [f"{name}={os.environ[name]}" for name in SETTINGS if os.environ.get(name)]
    return {
        "cpu": processor(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "blas": "unknown" if found is None else f"MKL {found[1]}" if found[1] else found[2],
        "numpy": numpy.__version__,
        "threads": str(torch.get_num_threads()),
        "settings": " ".join(settings) or "none",
    }


def processor() -> str:
    """Return the name of this machine's processor."""
    found = re.search(r"^model name\s*: (.+)$", text_of(_CPUINFO) or "", re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
