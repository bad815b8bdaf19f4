"""What engines run on: versions of the packages below them, and who computes attention where.

Importing none of those packages: their metadata is enough.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

PLANS = ("flashinfer", "fa3", "triton")
DTYPES = ("float32", "bfloat16", "float16")
FLASHINFER_DTYPES = ("bfloat16", "float16")
"""Of keys and queries that FlashInfer's kernels take."""

_DISTRIBUTIONS = {
    "torch": ("torch", ("torch",)),
    "triton": ("triton", ("triton",)),
    "flashinfer": ("flashinfer", ("flashinfer-python", "flashinfer")),
    "flash_attn": ("flash_attn", ("flash-attn",)),
}
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def versions() -> dict[str, str | None]:
    """Installed versions of torch, triton, flashinfer and flash_attn; None for those that are not."""
    return {name: _version(module, names) for name, (module, names) in _DISTRIBUTIONS.items()}


def executor_of(plan: str, device: str, dtype: str, flashinfer: bool) -> str:
    """Who executes a plan's metadata on a device; ``flashinfer``: whether the library is installed."""
    if device == "cpu":
        return "torch reference"
    if plan != "flashinfer":
        return "Triton kernels"
    if not flashinfer:
        return "Triton kernels (flashinfer is not installed)"
    return "FlashInfer" if dtype in FLASHINFER_DTYPES else f"Triton kernels (FlashInfer has no {dtype})"


def driver_version() -> str | None:
    """Version of NVIDIA's kernel driver, None where there is none. Needs no CUDA context."""
    try:
        text = _DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return found[1] if found else "unknown"


def nvcc_version() -> str | None:
    """Release and path of the CUDA compiler that FlashInfer would use, None when there is none."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    path = shutil.which("nvcc") or shutil.which("nvcc", path=os.path.join(home, "bin"))
    if path is None:
        return None
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return f"{path}, which does not run"
    found = re.search(r"release [\d.]+, V([\d.]+)", text)
    return f"{found[1] if found else 'unknown'} ({path})"


def _version(module: str, distributions: tuple[str, ...]) -> str | None:
    if importlib.util.find_spec(module) is None:
        return None
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"
