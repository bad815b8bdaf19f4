"""Taking a device: what an arm is told it has, and the one line when it is not there."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.workers import device
from specdebug.workers import device as coredump
from specdebug.workers.device import (
    VARIABLE,
    DeviceUnavailable,
    arrange_coredump,
    before_termination,
    claim,
    load_triton,
    wait_for_coredump,
    watch_triton,
)
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


def test_a_folder_can_be_named(tmp_path: Path) -> None:
    path = arrange_coredump("s-fixed", {VARIABLE: str(tmp_path / "here" / "there")})
    assert path is not None
    assert Path(path).parent == tmp_path / "here" / "there"


class Clock:
    """Time that passes by sleeping; at each sleep the next size of the file is written."""

    def __init__(self, path: Path, sizes: list[int]) -> None:
        self.now, self.path, self.sizes = 0.0, path, sizes

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.sizes:
            self.path.write_bytes(bytes(self.sizes.pop(0)))


def test_a_dump_is_waited_for_until_it_stops_growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(tmp_path / "dump", [0, 10, 20, 30])
    monkeypatch.setattr(coredump, "time", clock)
    wait_for_coredump(str(clock.path))
    assert clock.path.stat().st_size == 30
    assert clock.now < 1.0


def test_a_dump_that_never_comes_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(tmp_path / "dump", [])
    monkeypatch.setattr(coredump, "time", clock)
    wait_for_coredump(str(clock.path))
    assert clock.now == pytest.approx(10.0, abs=0.1)


END = """
import ctypes
import gc
from specdebug.workers.device import before_termination

def end():
    ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()

def say(word):
    print(word, flush=True)

"""


def ended(script: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a script that ends itself."""
    done = subprocess.run([sys.executable, "-c", END + script], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_the_last_words_are_heard_before_the_process_aborts() -> None:
    status, said, warned = ended("before_termination(lambda: say('found'))\nend()")
    assert (status, said) == (-signal.SIGABRT, "found\n")
    assert "terminate called" in warned, "C++'s own words stay"


@pytest.mark.parametrize("error", ["ValueError('odd')", "SystemExit(0)"])
def test_words_that_fail_keep_nothing_alive(error: str) -> None:
    status, said, warned = ended(f"def fail(): say('begun'); raise {error}\nbefore_termination(fail)\nend()")
    assert (status, said) == (-signal.SIGABRT, "begun\n")
    assert error.partition("(")[0] in warned


def test_words_over_which_c_plus_plus_gives_up_again_are_not_said_again() -> None:
    status, said, _ = ended("before_termination(lambda: (say('found'), end()))\nend()")
    assert (status, said) == (-signal.SIGABRT, "found\n")


def test_who_spoke_last_before_speaks_again_once_it_is_undone() -> None:
    script = "before_termination(lambda: say('first'))\nundo = before_termination(lambda: say('second'))\n"
    assert ended(script + "end()")[1] == "second\nfirst\n"
    assert ended(script + "undo()\nend()")[1] == "first\n"


def test_whoever_drops_what_undoes_it_is_heard_all_the_same() -> None:
    script = "class Speaker:\n    def speak(self): say('found')\nbefore_termination(Speaker().speak)\n"
    assert ended(f"{script}gc.collect()\n[object() for _ in range(10**5)]\nend()")[:2] == (-signal.SIGABRT, "found\n")


def test_another_c_plus_plus_library_arranges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdebug.workers.device._LIBRARY", "libnone.so.1")
    before_termination(lambda: None)()


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
