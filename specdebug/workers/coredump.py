"""GPU core dumps, off unless ``SPECDEBUG_CUDA_COREDUMP`` asks for them: ``1`` (they lie in ``specdebug/coredumps``
of the user's cache), or a folder to put them in.

The driver writes one when a kernel asserts or faults: which kernel, which warp, which line. It reads its settings
(NVIDIA's CUDA-GDB manual, "GPU core dump support") from the environment when a process makes its first context. Both
the present form (``CUDA_COREDUMP_GENERATION_FLAGS``, CUDA 12.5 and later) and the one it replaces are set. Open a dump
with ``cuda-gdb -ex 'target cudacore FILE'``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import MutableMapping
from pathlib import Path

from specdebug.base.files import cache_folder

VARIABLE = "SPECDEBUG_CUDA_COREDUMP"

_OFF = ("", "0", "false", "no", "off")
_ON = ("1", "true", "yes", "on")
_FLAGS = ("skip_nonrelocated_elf_images", "skip_global_memory", "skip_shared_memory", "skip_local_memory", "skip_abort")
_LONGEST_WAIT_S = 10.0
_QUIET_S = 0.2


def arrange_coredump(label: str, environment: MutableMapping[str, str] = os.environ) -> str | None:
    """Have the driver dump core for this process if ``environment`` asks for it; return the file it would write.

    The dump is small (registers and stacks), and the error reaches the engine as it would without one: no abort.
    """
    wish = environment.get(VARIABLE, "").strip()
    if wish.lower() in _OFF:
        return None
    folder = cache_folder("coredumps") if wish.lower() in _ON else Path(wish)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', label)}-{os.getpid()}.nvcudmp"
    environment.update(
        CUDA_ENABLE_COREDUMP_ON_EXCEPTION="1",
        CUDA_ENABLE_LIGHTWEIGHT_COREDUMP="1",
        CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION="0",
        CUDA_COREDUMP_GENERATION_FLAGS=",".join(_FLAGS),
        CUDA_COREDUMP_FILE=str(path),
    )
    return str(path)


def wait_for_coredump(path: str) -> None:
    """Wait until the driver, which writes from a thread of its own, has finished a dump: until the file has stopped
    growing, ten seconds at most."""
    deadline = time.monotonic() + _LONGEST_WAIT_S
    size, since = -1, time.monotonic()
    while (now := time.monotonic()) < deadline:
        found = os.path.getsize(path) if os.path.exists(path) else 0
        if found != size:
            size, since = found, now
        elif size > 0 and now - since > _QUIET_S:
            return
        time.sleep(0.02)
