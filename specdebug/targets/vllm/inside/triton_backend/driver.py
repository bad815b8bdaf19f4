"""The half of the backend that a device's driver would be."""

from __future__ import annotations

import os
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class InterpretedDriver(DriverBase):  # type: ignore[misc]  # Triton is not typed
    """A CPU. Methods that a compiled kernel's launch asks raise NotImplementedError."""

    @staticmethod
    def is_active() -> bool:
        return os.environ.get("TRITON_INTERPRET") == "1"

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError

    def get_current_target(self) -> Any:
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError
