"""Versions of the packages below engines, read from their metadata, and who computes attention where."""

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdebug.base.attention_plans import PLANS, SHIPPED, Generation
from specdebug.workers.system import text_of
from specdebug.workers.wire import Sink

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


DTYPES = ("float32", "bfloat16", "float16")

_DISTRIBUTIONS = {
    "torch": ("torch", ("torch",)),
    "triton": ("triton", ("triton",)),
    **{
        generation.package: (generation.module, generation.distributions)
        for plan in SHIPPED
        if plan.library is not None
        for generation in reversed(plan.library.generations)
    },
}
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def versions() -> dict[str, str | None]:
    """Return the installed versions of torch, triton, and the attention libraries; None for those that are not."""
    return {name: _version(module, names) for name, (module, names) in _DISTRIBUTIONS.items()}


def executor_of(plan: str, device: str, dtype: str, found: Mapping[str, Any], capability: str | None = None) -> str:
    """Return who executes a plan's metadata on a device, and why not its library.

    ``found`` is what :func:`versions` says, ``capability`` the GPU's, as ``9.0``; None where it is not known yet.
    """
    if device == "cpu":
        return "torch reference"
    library = PLANS[plan].library
    if library is None:
        return "Triton kernels"
    installed = [generation for generation in library.generations if _is_installed(generation, found)]
    if not installed:
        return f"Triton kernels ({library.package} is not installed)"
    sm = None if capability is None else int(capability.partition(".")[0])
    newest = (each for each in installed if sm is None or each.capability in (None, sm))
    if (fitting := next(newest, None)) is None:
        return f"Triton kernels ({installed[0].name} is not for sm {capability})"
    if dtype not in library.dtypes:
        return f"Triton kernels ({library.name} has no {dtype})"
    return f"{fitting.name} with {fitting.limits}, else Triton kernels" if fitting.limits else fitting.name


def _is_installed(generation: Generation, found: Mapping[str, Any]) -> bool:
    """Ask ``found``, which says nothing of the library of a plan that another package brings."""
    if generation.package in found:
        return found[generation.package] is not None
    return importlib.util.find_spec(generation.module) is not None


def driver_version() -> str | None:
    """Return the version of NVIDIA's kernel driver, None where there is none. Needs no CUDA context."""
    text = text_of(_DRIVER_FILE)
    if text is None:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return found[1] if found else "unknown"


def nvcc_version() -> str | None:
    """Return release and path of the CUDA compiler that FlashInfer would use, None when there is none."""
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


@functools.cache
def _stated_version(origin: str | None) -> str | None:
    """Return what the package's ``version.py`` says, None where it has none.

    torch's own file also names the build (``2.11.0+cu130``), which the metadata of a wheel from PyPI leaves out.
    """
    text = None if origin is None else text_of(Path(origin).with_name("version.py"))
    found = re.search(r"^__version__ = ['\"]([^'\"]+)['\"]", text or "", re.MULTILINE)
    return found[1] if found else None


@functools.cache
def _version_of(distribution: str) -> str:
    return importlib.metadata.version(distribution)


def _version(module: str, distributions: tuple[str, ...]) -> str | None:
    spec = importlib.util.find_spec(module)
    if spec is None:
        return None
    stated = _stated_version(spec.origin)
    if stated is not None:
        return stated
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return _version_of(name)
    return "unknown"


def describe(payload: object, sink: Sink) -> None:
    """Report versions, devices, and who executes each attention plan.

    What can be said without torch is said first: it may not import, and with it the process may end.
    """
    found = versions()
    sink.emit("packages", **found, driver=driver_version(), nvcc=nvcc_version())
    import torch

    found_gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    gpus: list[dict[str, Any]] = [
        {"name": each.name, "capability": f"{each.major}.{each.minor}", "memory_mb": each.total_memory // 2**20}
        for each in found_gpus
    ]
    device = "cuda" if gpus and found["triton"] is not None else "cpu"
    sink.emit(
        "machine",
        python=platform.python_version(),
        torch=torch.__version__,
        torch_threads=torch.get_num_threads(),
        cuda=torch.version.cuda,
        gpus=gpus,
        executors={plan: _executors(plan, device, found, gpus[0]["capability"] if gpus else None) for plan in PLANS},
    )


def _executors(plan: str, device: str, found: Mapping[str, Any], capability: str | None) -> str:
    dtypes: dict[str, list[str]] = {}
    for dtype in DTYPES:
        dtypes.setdefault(executor_of(plan, device, dtype, found, capability), []).append(dtype)
    if len(dtypes) == 1:
        return next(iter(dtypes))
    return "; ".join(f"{', '.join(names)}: {executor}" for executor, names in dtypes.items())
