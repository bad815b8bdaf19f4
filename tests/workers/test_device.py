"""Taking a device and leaving it: facts, refusals, core dumps, compilers, and the last words of a process."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.workers import device
from specdebug.workers.device import (
    VARIABLE,
    DeviceUnavailable,
    arrange_coredump,
    claim,
    load_triton,
    wait_for_coredump,
    watch_triton,
)
from specdebug.workers.machine_failure import MachineFailed, MachineFailure
from tests.run.fakes import ListSink


def raising(error: Exception) -> Callable[[int], None]:
    def fail(index: int) -> None:
        raise error

    return fail


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
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
    assert (facts["executor"], facts["torch"]) == ("torch reference", torch.__version__)
    assert "coredump" not in facts


@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_is_made_the_current_one(name: str, index: int, two_gpus: list[int]) -> None:
    facts = claim(name, "triton", "float32", "s-a")
    assert two_gpus == [index]
    assert (facts["name"], facts["capability"], facts["coredump"]) == ("NVIDIA H200", "9.0", None)


def unavailable(name: str = "cuda") -> str:
    with pytest.raises(DeviceUnavailable) as caught:
        claim(name, "triton", "float32", "s-a")
    assert ("\n" in str(caught.value), caught.value.exit_code) == (False, 2)
    return str(caught.value)


def test_a_device_that_is_not_there_is_one_line(two_gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert unavailable("cuda:7") == "there is no cuda:7; torch finds cuda:0, cuda:1"
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    assert "triton is not installed" in unavailable()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "no CUDA device" in unavailable()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without it" in unavailable()
    assert two_gpus == []


def test_a_driver_without_a_device_is_a_machine_that_fails(
    two_gpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(device, "driver_version", lambda: "580.1")
    with pytest.raises(MachineFailed, match="NVIDIA's driver is loaded, but shows no device"):
        claim("cuda", "triton", "float32", "s-a")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert "no CUDA device" in unavailable()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered\nadvice"),
        AssertionError("\nFound no NVIDIA driver on your system."),
    ],
)
def test_whatever_fails_in_the_very_first_use_is_the_machine_s(
    error: Exception, two_gpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in ((torch.cuda, "set_device"), (torch.cuda, "get_device_properties"), (device, "_launch")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, raising(error))
            with pytest.raises(MachineFailed) as caught:
                claim("cuda", "triton", "float32", "s-a")
        assert caught.value.failure == MachineFailure("device", str(error).strip().splitlines()[0])
    monkeypatch.setattr(device, "_launch", raising(torch.OutOfMemoryError("CUDA out of memory.")))
    with pytest.raises(torch.OutOfMemoryError):  # a full device is there
        claim("cuda", "triton", "float32", "s-a")


def test_a_probe_answers_once_something_was_computed(two_gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    device.answer("cuda:1", sink := ListSink())
    assert ([event["event"] for event in sink.events], two_gpus) == (["answers"], [1])
    monkeypatch.setattr(torch.cuda, "set_device", raising(RuntimeError("No CUDA GPUs are available")))
    with pytest.raises(MachineFailed, match="No CUDA GPUs are available"):
        device.answer("cuda", sink)
    assert len(sink.events) == 1


@pytest.mark.parametrize("wish", [None, "", "0", "No"])
def test_without_a_wish_for_core_dumps_the_driver_is_told_nothing(wish: str | None) -> None:
    environment = {} if wish is None else {VARIABLE: wish}
    before = dict(environment)
    assert arrange_coredump("a-b", environment) is None
    assert environment == before


def test_a_wish_sets_the_driver_up_for_a_small_dump_that_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    environment = {VARIABLE: "1"}
    path = arrange_coredump("topk/kv indices", environment)
    assert path == str(tmp_path / "specdebug" / "coredumps" / f"topk-kv-indices-{os.getpid()}.nvcudmp")
    assert Path(path).parent.is_dir()
    assert environment["CUDA_COREDUMP_FILE"] == path
    assert environment["CUDA_ENABLE_COREDUMP_ON_EXCEPTION"] == "1"
    assert environment["CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION"] == "0"
    assert "skip_abort" in environment["CUDA_COREDUMP_GENERATION_FLAGS"].split(",")
    named = arrange_coredump("s-fixed", {VARIABLE: str(tmp_path / "here" / "there")})
    assert Path(named or "").parent == tmp_path / "here" / "there"


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


@pytest.mark.parametrize(("sizes", "waited_s"), [([0, 10, 20, 30], 0.3), ([], 10.0)])
def test_a_dump_is_waited_for_until_it_stops_growing_but_not_for_ever(
    sizes: list[int], waited_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(tmp_path / "dump", list(sizes))
    monkeypatch.setattr(device, "time", clock)
    wait_for_coredump(str(clock.path))
    assert clock.sizes == []
    assert clock.now == pytest.approx(waited_s, abs=0.1)


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


@pytest.mark.parametrize(
    ("script", "said", "warned"),
    [
        ("before_termination(lambda: say('found'))\nend()", "found\n", "terminate called"),
        ("def fail(): say('begun'); raise SystemExit(0)\nbefore_termination(fail)\nend()", "begun\n", "SystemExit"),
        ("before_termination(lambda: (say('found'), end()))\nend()", "found\n", ""),
        (
            "class Speaker:\n    def speak(self): say('found')\nbefore_termination(Speaker().speak)\n"
            "gc.collect()\n[object() for _ in range(10**5)]\nend()",
            "found\n",
            "",
        ),
    ],
    ids=["once", "words that fail", "giving up again", "what undoes it is dropped"],
)
def test_the_last_words_are_heard_before_the_process_aborts(script: str, said: str, warned: str) -> None:
    status, out, err = ended(script)
    assert (status, out) == (-signal.SIGABRT, said)
    assert warned in err


def test_who_spoke_last_before_speaks_again_once_it_is_undone() -> None:
    script = "before_termination(lambda: say('first'))\nundo = before_termination(lambda: say('second'))\n"
    assert ended(script + "end()")[1] == "second\nfirst\n"
    assert ended(script + "undo()\nend()")[1] == "first\n"


def test_each_kernel_is_told_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(source: Any, target: Any = None, options: Any = None) -> Any:
        if source.name == "broken":
            raise ValueError("no")
        return source, target, options

    triton, compiler = ModuleType("triton"), SimpleNamespace(compile=compile)
    triton.compiler = compiler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", triton)
    told: list[str] = []
    watch_triton(told.append, lambda: told.append("done"))
    source = SimpleNamespace(name="move_kv")
    assert compiler.compile(source, target="sm_90", options={}) == (source, "sm_90", {})
    with pytest.raises(ValueError, match="no"):
        compiler.compile(SimpleNamespace(name="broken"))
    assert told == ["move_kv", "done", "broken", "done"]


def test_triton_is_loaded_and_has_hashed_itself_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, hashed = ModuleType("triton.runtime.cache"), []
    cache.triton_key = lambda: hashed.append("itself")  # type: ignore[attr-defined]
    for name in ("triton", "triton.runtime"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "triton.runtime.cache", cache)
    load_triton(None)
    assert hashed == ["itself"]
    monkeypatch.setitem(sys.modules, "triton", None)
    load_triton(None)
    watch_triton(lambda name: None, lambda: None)
