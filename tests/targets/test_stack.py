"""What doctor and every arm say they run on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdebug.targets import stack
from specdebug.targets.stack import (
    DTYPES,
    FLASHINFER_DTYPES,
    driver_version,
    executor_of,
    nvcc_version,
    versions,
)


@pytest.mark.parametrize(
    ("plan", "device", "dtype", "flashinfer", "executor"),
    [
        ("flashinfer", "cpu", "bfloat16", True, "torch reference"),
        ("triton", "cpu", "float32", False, "torch reference"),
        ("flashinfer", "cuda", "bfloat16", True, "FlashInfer"),
        ("flashinfer", "cuda", "float32", True, "Triton kernels (FlashInfer has no float32)"),
        ("flashinfer", "cuda:1", "float16", False, "Triton kernels (flashinfer is not installed)"),
        ("fa3", "cuda", "bfloat16", True, "Triton kernels"),
        ("triton", "cuda", "float32", True, "Triton kernels"),
    ],
)
def test_who_executes_which_plan(plan: str, device: str, dtype: str, flashinfer: bool, executor: str) -> None:
    assert executor_of(plan, device, dtype, flashinfer) == executor


def test_what_is_said_of_flashinfer_s_dtypes_is_what_the_engine_does() -> None:
    from specdebug.engine.attention.flashinfer_library import supports

    for name in DTYPES:
        assert (supports(getattr(torch, name), 64) is None) == (name in FLASHINFER_DTYPES)


def test_versions_are_of_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions()["torch"] == torch.__version__
    monkeypatch.setattr(stack.importlib.util, "find_spec", lambda name: None)
    assert set(versions().values()) == {None}


def test_the_driver_s_version_is_read_where_linux_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "version"
    monkeypatch.setattr(stack, "_DRIVER_FILE", file)
    assert driver_version() is None
    file.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (b@h)\n"
        "GCC version: 12.2.0\n"
    )
    assert driver_version() == "580.65.06"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27 21:21:55 UTC 2021\n")
    assert driver_version() == "470.82.01"


def test_nvcc_is_asked_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert nvcc_version() is None
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    assert nvcc_version() == f"13.0.88 ({nvcc})"
    nvcc.write_text("\x7fELF not really")
    assert nvcc_version() == f"{nvcc}, which does not run"
