"""Report what a worker finds on this machine: ``specdebug doctor`` asks it, so that a broken torch breaks no more."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from specdebug.base.attention_plans import PLANS
from specdebug.workers.stack import DTYPES, driver_version, executor_of, nvcc_version, versions
from specdebug.workers.wire import Sink


def describe(payload: object, sink: Sink) -> None:
    """Report versions, devices, and who executes each attention plan.

    What can be said without torch is said first: it may not import, and with it the process may end.
    """
    found = versions()
    sink.emit("packages", **found, driver=driver_version(), nvcc=nvcc_version())
    import torch

    gpus: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_mb": properties.total_memory // 2**20,
            }
        )
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
    """Return who executes a plan; dtype by dtype where that matters."""
    dtypes: dict[str, list[str]] = {}
    for dtype in DTYPES:
        dtypes.setdefault(executor_of(plan, device, dtype, found, capability), []).append(dtype)
    if len(dtypes) == 1:
        return next(iter(dtypes))
    return "; ".join(f"{', '.join(names)}: {executor}" for executor, names in dtypes.items())
