"""What the last bits of a sum depend on: the processor, what torch makes of it, and the settings that steer that.

Read in workers, where torch is loaded.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

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
    """The processor, torch's name for what it can do, BLAS, numpy, threads, and the settings that are set."""
    import numpy
    import torch

    found = _BLAS.search(torch.__config__.show())
    settings = [f"{name}={os.environ[name]}" for name in SETTINGS if os.environ.get(name)]
    return {
        "cpu": _processor(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "blas": "unknown" if found is None else f"MKL {found[1]}" if found[1] else found[2],
        "numpy": numpy.__version__,
        "threads": str(torch.get_num_threads()),
        "settings": " ".join(settings) or "none",
    }


def _processor() -> str:
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
