"""What doctor's worker reports: packages before torch, then devices and who executes each plan."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specdebug.workers import inspect
from tests.run.fakes import ListSink

HERE = {"torch": "2.11.0", "triton": "3.6.0", "flashinfer": "0.6.12", "flash_attn": None, "flash_attn_3": None}


def test_a_gpu_and_what_it_will_be_used_for(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=140 * 2**30)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(inspect, "versions", lambda: dict(HERE))
    inspect.describe(None, sink := ListSink())
    assert [event["event"] for event in sink.events] == ["packages", "machine"]
    assert sink.events[0]["flash_attn"] is None
    machine = sink.events[1]
    assert machine["gpus"] == [{"name": "NVIDIA H200", "capability": "9.0", "memory_mb": 140 * 1024}]
    assert machine["executors"] == {
        "flashinfer": "float32: Triton kernels (FlashInfer has no float32); bfloat16, float16: FlashInfer",
        "fa3": "Triton kernels (flash-attn is not installed)",
        "triton": "Triton kernels",
    }


def test_flash_attn_is_named_where_it_will_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=2**30)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(inspect, "versions", lambda: {**HERE, "flash_attn_3": "3.0.0"})
    inspect.describe(None, sink := ListSink())
    assert sink.events[1]["executors"]["fa3"] == (
        "float32: Triton kernels (flash-attn has no float32); bfloat16, float16: FlashAttention-3"
    )


def test_a_gpu_without_triton_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=2**30)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(inspect, "versions", lambda: {**HERE, "triton": None})
    inspect.describe(None, sink := ListSink())
    assert set(sink.events[1]["executors"].values()) == {"torch reference"}
