"""Triton's compiler, watched: told before and after each kernel, and otherwise left as it was."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specdebug.workers.compiling import watch_triton


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for ``triton.compiler`` whose ``compile`` returns what it was given, or fails."""
    triton, compiler = ModuleType("triton"), ModuleType("triton.compiler")

    def compile(source: Any, target: Any = None, options: Any = None) -> Any:
        if source.name == "broken":
            raise ValueError("no")
        return source, target, options

    compiler.compile = compile  # type: ignore[attr-defined]
    triton.compiler = compiler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.compiler", compiler)
    return compiler


def test_each_kernel_is_told_before_and_after(compiler: Any) -> None:
    told: list[str] = []
    watch_triton(told.append, lambda: told.append("done"))
    source = SimpleNamespace(name="move_kv")
    assert compiler.compile(source, target="sm_90", options={}) == (source, "sm_90", {})
    with pytest.raises(ValueError, match="no"):
        compiler.compile(SimpleNamespace(name="broken"))
    assert told == ["move_kv", "done", "broken", "done"]


def test_without_triton_there_is_nothing_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    watch_triton(lambda name: None, lambda: None)
