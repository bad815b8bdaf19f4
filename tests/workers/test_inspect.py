"""What doctor's worker reports: packages before torch, then devices and who executes each plan."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specdebug.workers import inspect
from tests.run.fakes import ListSink

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
