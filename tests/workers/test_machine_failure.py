"""Which errors are the machine's, and which stay a verdict."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specdebug.workers import machine_failure as module
from specdebug.workers import system
from specdebug.workers.machine_failure import machine_failure

ADVICE = "\nCUDA kernel errors might be asynchronously reported at some other API call\nCompile with TORCH_USE_CUDA_DSA"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (torch.AcceleratorError(f"CUDA error: no CUDA-capable device is detected{ADVICE}"), "device"),
        (RuntimeError("No CUDA GPUs are available"), "device"),
        (RuntimeError("CUDA unknown error - this may be due to an incorrectly set up environment"), "device"),
        (RuntimeError(f"CUDA error: initialization error{ADVICE}"), "device"),
        (RuntimeError("Triton Error [CUDA]: initialization error"), "device"),
        (RuntimeError("CUDA driver initialization failed, you might not have a CUDA gpu."), "device"),
        (torch.AcceleratorError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"), "device"),
        (RuntimeError("NVRM: Xid (PCI:0000:9d:00): 79, GPU has fallen off the bus."), "device"),
        (RuntimeError("Failed to initialize NVML: Driver/library version mismatch"), "device"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "device"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/x"), "disk"),
        (RuntimeError("unable to write to file </torch_12_3>: No space left on device (28)"), "disk"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "disk"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "processes"),
        (RuntimeError("can't start new thread"), "processes"),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "descriptors"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/dev/null"), "descriptors"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "memory"),
        (MemoryError(), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes."), "memory"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 64 bytes."), "memory"),
        (MemoryError("Unable to allocate 1.00 MiB for an array with shape (1,)"), "memory"),
    ],
)
def test_a_failure_of_the_machine_is_recognised(error: Exception, cause: str) -> None:
    failure = machine_failure(error)
    assert failure is not None
    assert failure.cause == cause
    assert "\n" not in failure.reason
    assert "TORCH_USE_CUDA_DSA" not in failure.reason
    assert failure.reason.startswith("machine: ")


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        torch.AcceleratorError("CUDA error: device-side assert triggered"),
        torch.AcceleratorError("CUDA error: unspecified launch failure"),
        torch.AcceleratorError("CUDA error: invalid argument"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB."),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError(f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {2**62} bytes."),
        MemoryError("Unable to allocate 7.28 EiB for an array with shape (1000000000000,) and data type float64"),
        OSError(errno.ENOENT, os.strerror(errno.ENOENT), "weights.safetensors"),
        AssertionError("expected 3 got 4"),
        KeyError("g0.0"),
    ],
)
def test_what_an_engine_does_wrong_is_not_the_machine_s(error: Exception) -> None:
    assert machine_failure(error) is None


def test_an_allocation_is_held_against_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2048 bytes.")
    monkeypatch.setattr(module, "_total_memory", lambda: 4096)
    assert machine_failure(asked) is not None
    monkeypatch.setattr(module, "_total_memory", lambda: 1024)
    assert machine_failure(asked) is None
    monkeypatch.setattr(module, "_total_memory", lambda: None)  # nobody knows: then it is believed
    assert machine_failure(asked) is not None


def test_an_error_is_looked_through_to_what_it_was_raised_from() -> None:
    outer = RuntimeError("the kernel cannot be compiled")
    outer.__cause__ = OSError(errno.ENOSPC, "No space left on device", "/tmp/triton")
    failure = machine_failure(outer)
    assert failure is not None
    assert failure.cause == "disk"
    unrelated = RuntimeError("slot 7 has 2 owners")
    unrelated.__context__ = MemoryError()
    assert machine_failure(unrelated) is None


VMSTAT = "nr_free_pages 5\noom_kill 9\n"


@pytest.mark.parametrize(
    ("texts", "kills"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.events": "oom 4\noom_kill 3\n"}, 3),
        (
            {
                "proc/self/cgroup": "5:cpu:/\n4:memory:/x\n",
                "sys/fs/cgroup/memory/x/memory.oom_control": "under_oom 0\noom_kill 2\n",
            },
            2,
        ),
        ({"proc/self/cgroup": "0::/\n", "proc/vmstat": VMSTAT}, 9),
        ({"proc/vmstat": VMSTAT}, 9),
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({}, None),
    ],
)
def test_kills_are_counted_as_near_to_the_process_as_can_be(
    texts: dict[str, str], kills: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path, **options: str) -> str:
        if str(path).lstrip("/") not in texts:
            raise FileNotFoundError(path)
        return texts[str(path).lstrip("/")]

    monkeypatch.setattr(Path, "read_text", read)
    assert system.oom_kills() == kills


def test_a_process_is_gone_once_it_has_ended_whether_or_not_anybody_has_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not system.is_gone(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if sys.platform == "linux":
            assert system.is_gone(process.pid)
    assert system.is_gone(process.pid)
    assert not system.is_gone(2**80)
