"""Triton's language is prepared once for each set of its modules that a kernel sees."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from triton import language
from triton.runtime import interpreter

from specdebug.targets.sglang.inside.interpreter import prepare_once


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions that the language was prepared for."""
    seen: list[Any] = []
    monkeypatch.setattr(interpreter, "_patch_lang", seen.append)
    return seen


def test_a_second_kernel_finds_it_prepared(prepared: list[Any]) -> None:
    first, second, other = (
        SimpleNamespace(__globals__=each)
        for each in ({"tl": language, "torch": 1}, {"tl": language}, {"tl": language, "core": language.core})
    )
    assert prepare_once() == "triton.runtime.interpreter._patch_lang"
    for kernel in (first, second, first, other, second):
        interpreter._patch_lang(kernel).restore()  # type: ignore[attr-defined]
    assert prepared == [first, other]


def test_a_kernel_that_sees_none_of_it_is_told_off_as_ever(prepared: list[Any]) -> None:
    prepare_once()
    kernel = SimpleNamespace(__globals__={})
    interpreter._patch_lang(kernel)  # type: ignore[attr-defined]
    assert prepared == [kernel]
