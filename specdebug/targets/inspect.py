"""What a worker finds on this machine; ``specdebug doctor`` runs it there, so a broken torch breaks nothing
else."""

from __future__ import annotations

import importlib.util
import platform
from typing import Any

from specdebug.targets.wire import Sink

GPU_PACKAGES = ("triton", "flashinfer", "flash_attn_interface", "sgl_kernel")


def describe(payload: object, sink: Sink) -> None:
    """Report versions, devices and which GPU packages are installed."""
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
    sink.emit(
        "machine",
        python=platform.python_version(),
        torch=torch.__version__,
        torch_threads=torch.get_num_threads(),
        cuda=torch.version.cuda,
        gpus=gpus,
        gpu_packages=[name for name in GPU_PACKAGES if importlib.util.find_spec(name) is not None],
    )
