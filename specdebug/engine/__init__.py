"""The embedded EAGLE engine: small, real, and ignorant of toggles, faults and scenarios.

Names are resolved lazily so that ``specdebug.engine.config`` can be read without importing torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdebug.engine.config import EngineConfig
    from specdebug.engine.textbook.engine import Engine
    from specdebug.engine.textbook.request import Request, SamplingParams

__all__ = ["Engine", "EngineConfig", "Request", "SamplingParams"]

_HOME = {
    "Engine": "textbook.engine",
    "EngineConfig": "config",
    "Request": "textbook.request",
    "SamplingParams": "textbook.request",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
