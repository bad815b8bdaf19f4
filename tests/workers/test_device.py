"""Taking a device: what an arm is told it has, and the one line when it is not there."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.workers import device
from specdebug.workers.device import DeviceUnavailable, claim
from specdebug.workers.machine_failure import MachineFailed, MachineFailure
from tests.run.fakes import ListSink


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A torch that believes in two GPUs; the list says which it was told to use."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(device, "_launch", lambda index: None)
    monkeypatch.setattr(device, "driver_version", lambda: None)
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


GONE = "NVIDIA's driver is loaded, but shows no device"


def test_a_driver_without_a_device_is_a_machine_that_fails(
    two_gpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(device, "driver_version", lambda: "580.1")
    with pytest.raises(MachineFailed, match=GONE):
        claim("cuda", "triton", "float32", "s-a")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert "no CUDA device" in unavailable()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: unknown error"),
        RuntimeError("CUDA error: an illegal memory access was encountered\nadvice"),
        RuntimeError("CUDA error: unspecified launch failure"),
        AssertionError("\nFound no NVIDIA driver on your system."),
    ],
)
def test_whatever_fails_in_the_very_first_use_is_the_machine_s(
    error: Exception, two_gpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(index: int) -> None:
        raise error

    for owner, name in ((torch.cuda, "set_device"), (torch.cuda, "get_device_properties"), (device, "_launch")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(MachineFailed) as caught:
                claim("cuda", "triton", "float32", "s-a")
        assert caught.value.failure == MachineFailure("device", str(error).strip().splitlines()[0])


def test_a_full_device_is_there(two_gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(index: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    monkeypatch.setattr(device, "_launch", fail)
    with pytest.raises(torch.OutOfMemoryError):
        claim("cuda", "triton", "float32", "s-a")


def test_a_probe_answers_once_something_was_computed(two_gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[int] = []
    monkeypatch.setattr(device, "_launch", launched.append)
    sink = ListSink()
    device.answer("cuda:1", sink)
    assert ([event["event"] for event in sink.events], launched) == (["answers"], [1])


def test_a_probe_of_nothing_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(index: int) -> None:
        raise RuntimeError("No CUDA GPUs are available")

    monkeypatch.setattr(torch.cuda, "set_device", fail)
    sink = ListSink()
    with pytest.raises(MachineFailed, match="No CUDA GPUs are available"):
        device.answer("cuda", sink)
    assert sink.events == []
