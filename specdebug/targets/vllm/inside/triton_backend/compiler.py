"""The half of the backend that a compiler would be. Triton asks it for nothing where kernels are interpreted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton.backends.compiler import BaseBackend


class InterpretedBackend(BaseBackend):  # type: ignore[misc]  # Triton is not typed
    """Compiles nothing. Methods that a compiler has raise NotImplementedError."""

    binary_ext = "none"

    @staticmethod
    def supports_target(target: Any) -> bool:
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        return "interpreted"

    def parse_options(self, options: Mapping[str, Any]) -> object:
        raise NotImplementedError

    def add_stages(self, stages: Any, options: Any, language: Any = None) -> None:
        raise NotImplementedError

    def load_dialects(self, context: Any) -> None:
        raise NotImplementedError

    def get_module_map(self) -> dict[str, Any]:
        raise NotImplementedError
