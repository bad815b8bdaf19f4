"""Triton finds the backend by its entry point, and takes a CPU for its device where kernels are interpreted."""

from __future__ import annotations

import pytest
from triton.backends import _find_concrete_subclasses
from triton.backends.compiler import BaseBackend
from triton.backends.driver import DriverBase

from specdebug.targets.vllm.inside.triton_backend import compiler, driver


def test_triton_s_own_look_finds_both_halves() -> None:
    assert _find_concrete_subclasses(compiler, BaseBackend) is compiler.InterpretedBackend
    assert _find_concrete_subclasses(driver, DriverBase) is driver.InterpretedDriver


@pytest.mark.parametrize(("interprets", "active"), [("1", True), ("0", False)])
def test_it_is_active_where_kernels_are_interpreted(
    interprets: str, active: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interprets)
    assert driver.InterpretedDriver.is_active() is active
    target = driver.InterpretedDriver().get_current_target()
    assert compiler.InterpretedBackend.supports_target(target)
    assert str(driver.InterpretedDriver().get_active_torch_device()) == "cpu"
