"""Triton's compiler, watched: told before and after each kernel, and otherwise left as it was."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specdebug.workers.compiling import load_triton, watch_triton


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


def test_triton_is_loaded_and_has_hashed_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, hashed = ModuleType("triton.runtime.cache"), []
    cache.triton_key = lambda: hashed.append("itself")  # type: ignore[attr-defined]
    for name in ("triton", "triton.runtime"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "triton.runtime.cache", cache)
    load_triton(None)
    assert hashed == ["itself"]


def test_a_triton_that_is_not_there_or_is_broken_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    load_triton(None)
    assert sys.modules["triton"] is None


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_triton_s_key_is_where_it_is_looked_for() -> None:
    from triton.runtime import cache

    assert callable(cache.triton_key)
    assert hasattr(cache.triton_key, "cache_info"), "computed once in a process"
