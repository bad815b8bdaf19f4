"""A worker takes its device, arranges core dumps and last words, watches compilers, and leaves when it has died.

The fork server never touches CUDA (a context does not survive a fork), so each worker makes its own context.
"""

import contextlib
import ctypes
import functools
import gc
import importlib.util
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, NoReturn

from specdebug.base.errors import SpecDebugError
from specdebug.base.files import cache_folder
from specdebug.workers.machine_failure import MachineFailed, MachineFailure
from specdebug.workers.stack import arithmetic, driver_version, executor_of, versions
from specdebug.workers.wire import Sink

# asks for core dumps of a GPU: ``1`` (in the user's cache), or a folder; the driver reads it when it makes a context
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


class DeviceUnavailable(SpecDebugError):
    """The device an engine asks for is not there."""


def claim(device: str, plan: str, dtype: str, label: str) -> dict[str, Any]:
    """Make ``device`` (``cpu``, ``cuda``, ``cuda:N``) this process's own, and return the facts of the stack.

    When core dumps are wanted, these name the file one would be written to (``label`` is part of its name).

    Raises DeviceUnavailable when there is no such device or nothing to run on it with; MachineFailed when it should be
    there and does not answer: whatever fails before this process has used it is not this process's doing.
    """
    facts: dict[str, Any] = {"device": device, "name": "CPU", **versions()}
    facts |= {"backend": plan, "executor": executor_of(plan, device, dtype, facts), "dtype": dtype}
    facts["arithmetic"] = arithmetic()
    if device == "cpu":
        return facts
    facts["coredump"] = arrange_coredump(label)  # the driver reads its settings when the context is made
    import torch

    if torch.version.cuda is None:
        raise DeviceUnavailable(f"there is no CUDA: this torch ({torch.__version__}) is built without it; use cpu")
    count = torch.cuda.device_count()
    if count == 0:
        if driver_version() is not None and "CUDA_VISIBLE_DEVICES" not in os.environ:
            raise MachineFailed(MachineFailure("device", "NVIDIA's driver is loaded, but shows no device"))
        raise DeviceUnavailable("there is no CUDA device here that torch can use; use cpu")
    index = torch.device(device).index or 0
    if index >= count:
        known = ", ".join(f"cuda:{n}" for n in range(count))
        raise DeviceUnavailable(f"there is no {device}; torch finds {known}")
    if importlib.util.find_spec("triton") is None:
        raise DeviceUnavailable("on CUDA the engine runs Triton kernels, and triton is not installed; use cpu")
    properties = _first_use(index)
    facts["name"] = properties.name
    facts["capability"] = f"{properties.major}.{properties.minor}"
    facts["executor"] = executor_of(plan, device, dtype, facts, facts["capability"])
    return facts


def answer(device: str, sink: Sink) -> None:
    """Report ``answers`` once a fresh process has taken ``device`` and computed on it. Raises as :func:`claim`."""
    import torch

    _first_use(torch.device(device).index or 0)
    sink.emit("answers")


def _first_use(index: int) -> Any:
    """Take a device, compute something tiny on it and wait for that; return its properties. Raises MachineFailed."""
    import torch

    try:
        torch.cuda.set_device(index)  # where kernels that are not told otherwise are launched
        properties = torch.cuda.get_device_properties(index)
        _launch(index)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:  # torch asserts that there is a driver
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise MachineFailed(MachineFailure("device", line)) from error
    return properties


def _launch(index: int) -> None:
    """Allocate, launch a kernel and wait for it, and leave the allocator as empty as it was."""
    import torch

    torch.ones(1, device=f"cuda:{index}").add_(1)
    torch.cuda.synchronize(index)
    torch.cuda.empty_cache()


def leave_now(status: int = 0) -> NoReturn:
    """End this process without tearing anything down.

    After a device assertion or a fault every CUDA call fails, and destructors of graphs and pools make such calls: they
    could hang, or abort the process. C streams are flushed for what the driver may still have printed.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)
    os._exit(status)


_LIBRARY = "libstdc++.so.6"
_SET_TERMINATE = "_ZSt13set_terminatePFvvE"
_Handler = ctypes.CFUNCTYPE(None)
_arranged: list[Any] = []  # the handlers that C++ may call: it keeps their addresses, and nothing alive


def before_termination(say: Callable[[], None]) -> Callable[[], None]:
    """Have ``say`` called if C++ code ends this process, before it aborts as it would have; returns what undoes this.

    ``say`` runs in the thread that C++ gave up in, perhaps with locks of torch held: it must ask the device for
    nothing. Where C++'s own library is not GNU's, nothing is arranged.
    """
    try:
        set_terminate = getattr(ctypes.CDLL(_LIBRARY), _SET_TERMINATE)
    except (OSError, AttributeError):
        return lambda: None
    set_terminate.argtypes, set_terminate.restype = [ctypes.c_void_p], ctypes.c_void_p
    unsaid, previous = [say], list[int | None]()

    def speak() -> None:
        """Say it once, whatever comes of that, and let the handler before this one end the process."""
        gc.disable()  # what it would destroy could throw again
        if unsaid:
            try:
                unsaid.pop()()
            except BaseException:
                traceback.print_exc()
        if previous[0]:
            _Handler(previous[0])()

    handler = _Handler(speak)
    _arranged.append(handler)
    previous.append(set_terminate(ctypes.cast(handler, ctypes.c_void_p)))

    def undo() -> None:
        set_terminate(previous[0])
        _arranged.remove(handler)

    return undo


def watch_triton(begun: Callable[[str], None], done: Callable[[], None]) -> None:
    """Call ``begun`` with a kernel's name when Triton takes it up, and ``done`` when it has it, compiled or cached.

    Triton's own hook (``knobs.runtime.jit_cache_hook``) is not used: with one set, Triton first writes every launch's
    constants as JSON, so a hook can make kernels fail that run without it. Must be called before the first kernel
    runs, because a kernel keeps the compiler it found then. Without Triton this does nothing.
    """
    try:
        from triton import compiler
    except ImportError:
        return
    original = compiler.compile

    @functools.wraps(original)
    def compile(source: Any, *args: Any, **options: Any) -> Any:
        begun(str(getattr(source, "name", "a kernel")))
        try:
            return original(source, *args, **options)
        finally:
            done()

    compiler.compile = compile


def load_triton(_: None) -> None:
    """Import Triton, and have it hash itself: its key to kernels compiled earlier holds its own files, half a gigabyte
    that every process reads before its first kernel. Forks of this one need not. No device is touched."""
    with contextlib.suppress(Exception):  # whatever is wrong with it, the worker that needs it tells
        from triton.runtime.cache import triton_key

        triton_key()
