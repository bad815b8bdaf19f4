"""What doctor and every arm say they run on."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specdebug.base.attention_plans import FLASH_ATTN_LIBRARY, FLASHINFER_LIBRARY
from specdebug.workers import stack
from specdebug.workers import stack as inspect
from specdebug.workers.stack import (
    DTYPES,
    driver_version,
    executor_of,
    nvcc_version,
)
from tests.run.fakes import ListSink


def found(*packages: str) -> dict[str, str | None]:
    return {name: "1.0" if name in packages else None for name in ("flashinfer", "flash_attn", "flash_attn_3")}


@pytest.mark.parametrize(
    ("plan", "device", "dtype", "packages", "executor"),
    [
        ("flashinfer", "cpu", "bfloat16", ("flashinfer",), "torch reference"),
        ("triton", "cpu", "float32", (), "torch reference"),
        ("flashinfer", "cuda", "bfloat16", ("flashinfer",), "FlashInfer"),
        ("flashinfer", "cuda", "float32", ("flashinfer",), "Triton kernels (FlashInfer has no float32)"),
        ("flashinfer", "cuda:1", "float16", ("flash_attn",), "Triton kernels (flashinfer is not installed)"),
        ("fa3", "cpu", "bfloat16", ("flash_attn_3",), "torch reference"),
        ("fa3", "cuda", "bfloat16", ("flashinfer",), "Triton kernels (flash-attn is not installed)"),
        ("fa3", "cuda", "float32", (), "Triton kernels (flash-attn is not installed)"),
        ("fa3", "cuda", "float16", ("flash_attn_3", "flash_attn"), "FlashAttention-3"),
        ("fa3", "cuda", "float32", ("flash_attn_3",), "Triton kernels (flash-attn has no float32)"),
        ("triton", "cuda", "float32", ("flashinfer", "flash_attn_3"), "Triton kernels"),
    ],
)
def test_who_executes_which_plan(plan: str, device: str, dtype: str, packages: tuple[str, ...], executor: str) -> None:
    assert executor_of(plan, device, dtype, found(*packages), "9.0") == executor


def test_flash_attention_3_is_for_hopper_and_2_for_large_pages() -> None:
    both = found("flash_attn", "flash_attn_3")
    assert executor_of("fa3", "cuda", "bfloat16", both) == "FlashAttention-3", "until the GPU is known"
    assert "FlashAttention-2 with pages of a multiple of 256" in executor_of("fa3", "cuda", "bfloat16", both, "8.0")
    only = executor_of("fa3", "cuda", "bfloat16", found("flash_attn_3"), "12.0")
    assert only == "Triton kernels (FlashAttention-3 is not for sm 12.0)"


def test_what_is_said_of_the_libraries_dtypes_is_what_the_engine_does() -> None:
    from specdebug.engine.gpu import flash_attn, flashinfer_library

    for name in DTYPES:
        dtype = getattr(torch, name)
        assert (flashinfer_library.supports(dtype, 64) is None) == (name in FLASHINFER_LIBRARY.dtypes)
        for generation in (2, 3):
            reason = flash_attn.supports(generation, dtype, 64, page_size=256, topk=1, major=9)
            assert (reason is None) == (name in FLASH_ATTN_LIBRARY.dtypes)


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


HERE = {"torch": "2.11.0", "triton": "3.6.0", "flashinfer": "0.6.12", "flash_attn": None, "flash_attn_3": None}


FOUND_FOR = "float32: Triton kernels ({0} has no float32); bfloat16, float16: {1}"


@pytest.mark.parametrize(
    ("found", "executors"),
    [
        ({}, {"flashinfer": FOUND_FOR.format("FlashInfer", "FlashInfer"), "triton": "Triton kernels",
              "fa3": "Triton kernels (flash-attn is not installed)"}),
        ({"flash_attn_3": "3.0.0"}, {"fa3": FOUND_FOR.format("flash-attn", "FlashAttention-3")}),
        ({"triton": None}, dict.fromkeys(("flashinfer", "fa3", "triton"), "torch reference")),
    ],
)  # fmt: skip
def test_a_gpu_and_what_it_will_be_used_for(
    found: dict[str, str | None], executors: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=140 * 2**30)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(inspect, "versions", lambda: {**HERE, **found})
    inspect.describe(None, sink := ListSink())
    packages, machine = sink.events
    assert (packages["event"], packages["flash_attn"], machine["event"]) == ("packages", None, "machine")
    assert machine["gpus"] == [{"name": "NVIDIA H200", "capability": "9.0", "memory_mb": 140 * 1024}]
    assert machine["executors"] == {**machine["executors"], **executors}
