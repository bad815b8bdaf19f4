"""Taking a device: what an arm is told it has, and the one line when it is not there."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.targets import device
from specdebug.targets.device import DeviceUnavailable, claim


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A torch that believes in two GPUs; the list says which it was told to use."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: SimpleNamespace(origin=None))
    return chosen


def test_the_cpu_is_always_there() -> None:
    facts = claim("cpu", "fa3", "bfloat16", "s-a")
    assert (facts["device"], facts["backend"], facts["dtype"]) == ("cpu", "fa3", "bfloat16")
    assert facts["executor"] == "torch reference"
    assert facts["torch"] == torch.__version__
    assert "coredump" not in facts


@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_is_made_the_current_one(name: str, index: int, two_gpus: list[int]) -> None:
    facts = claim(name, "triton", "float32", "s-a")
    assert two_gpus == [index]
    assert (facts["name"], facts["capability"], facts["coredump"]) == ("NVIDIA H200", "9.0", None)


def unavailable(**patches: Any) -> str:
    with pytest.raises(DeviceUnavailable) as caught:
        claim(patches.get("name", "cuda"), "triton", "float32", "s-a")
    line = str(caught.value)
    assert "\n" not in line
    assert caught.value.exit_code == 2
    return line


def test_a_device_that_is_not_there_is_one_line(two_gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert unavailable(name="cuda:7") == "there is no cuda:7; torch finds cuda:0, cuda:1"
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    assert "triton is not installed" in unavailable()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "no CUDA device" in unavailable()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without it" in unavailable()
    assert two_gpus == []
