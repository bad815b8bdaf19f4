"""TorchScript: ``torch.jit.script`` compiles what the file says, not the function's code.

It is handed the patched text instead. A counter cannot run in what it makes, so the edits of a function count once each
time it is compiled. What is compiled already cannot be patched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from specdebug.patching.hits import hit
from specdebug.patching.texts import FunctionText, reading

MODULE = "torch.jit.frontend"


def hand_text(frontend: ModuleType, text_of: Callable[[FunctionType], FunctionText | None]) -> None:
    """Let TorchScript read functions as ``text_of`` has them; None means as they are in their files."""
    real = frontend.parse_def

    def parse_def(thing: Any) -> Any:
        function = getattr(thing, "__func__", thing)
        text = text_of(function) if isinstance(function, FunctionType) else None
        if text is None:
            return real(thing)
        with reading(function, text):
            parsed = real(function)
        for index in text.counters:
            hit(index)
        return parsed

    frontend.parse_def = parse_def  # type: ignore[attr-defined]


def is_compiled(function: FunctionType) -> bool:
    """Return True if TorchScript has compiled a function, by itself or as a method."""
    state, recursive = sys.modules.get("torch.jit._state"), sys.modules.get("torch.jit._recursive")
    if state is None or recursive is None:
        return False
    if function in state._jit_caching_layer:
        return True
    name = function.__name__
    types = recursive.concrete_type_store.type_store.items()
    modules = [kind for kind, made in types if any(name in each.jit_type.method_names() for each in made)]
    return any(getattr(kind, name, None) is function for kind in (*modules, *state._script_classes))


def forget(function: FunctionType) -> None:
    """Let a function be compiled anew when it is next asked for."""
    if state := sys.modules.get("torch.jit._state"):
        state._jit_caching_layer.pop(function, None)
