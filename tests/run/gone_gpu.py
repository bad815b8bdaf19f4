"""Preloaded into a fork server: a torch that counts one GPU, which no process can take."""

import importlib.util
from types import SimpleNamespace
from typing import Any

import torch

import specdebug.workers.device

_find_spec = importlib.util.find_spec


def _refuse(index: Any) -> None:
    raise torch.AcceleratorError(
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors might be reported later"
    )


def _with_triton(name: str, package: str | None = None) -> Any:
    return SimpleNamespace(origin=None) if name == "triton" else _find_spec(name, package)


torch.version.cuda = "13.0"
torch.cuda.device_count = lambda: 1
torch.cuda.set_device = _refuse
specdebug.workers.device.importlib.util.find_spec = _with_triton
