"""Frames of stacks, in the forms of all printers, and the place in an engine's own code that they lead to.

Python's tracebacks have the innermost frame last; py-spy, faulthandler and native backtraces have it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from specdebug.logs.engine import compiled

MAX_PLACE = 60
LOOKED_AT = 2000
"""Bytes of a line in which a frame is looked for."""

PACKAGES = frozenset(
    {"sglang", "sgl_kernel", "sgl_jax", "vllm", "vllm_ascend", "tensorrt_llm", "text_generation_server", "openvino",
     "openvino_genai", "llama_cpp", "specdebug", "lmcache"}
)  # fmt: skip
"""Packages of Python that are engines."""

_NOT_ITS_OWN = frozenset({"test", "tests", "benchmark", "benchmarks", "examples", "tools", "scripts", "ci", ".github"})
"""Folders of an engine's repository that are not the engine."""
_LIBRARIES = frozenset(
    {"torch", "torch_npu", "triton", "numpy", "jax", "jaxlib", "flashinfer", "xgrammar", "asyncio", "concurrent",
     "multiprocessing", "threading.py", "selectors.py", "subprocess.py", "queue.py", "socket.py", "zmq", "uvloop",
     "uvicorn", "starlette", "fastapi", "requests", "urllib3", "httpx", "unittest", "_pytest", "pluggy", "pytest",
     "contextlib.py", "_contextlib.py", "runpy.py", "transformers", "huggingface_hub", "ray", "site-packages",
     "dist-packages", "selector_events.py", "base_events.py", "runners.py", "codecs.py", "ssl.py"}
)  # fmt: skip
_WAITING = frozenset({"wait", "acquire", "get", "join", "poll", "put", "recv", "select", "sleep", "run_forever"})
_WAITS = (
    "all_gather", "all_reduce", "allgather", "allreduce", "barrier", "broadcast", "recv_requests", "synchronize",
    "wait_for", "watchdog",
)  # fmt: skip
"""Functions, and words in the names of functions, of threads that only wait for another."""

PYTHON = compiled(rb"File \"([^\"\n]+)\", line \d+,? in ([^\s,]+)")
SAMPLED = compiled(rb"(?:^|[ \t])([A-Za-z_][\w.<>]*) \(([^()\s:]+\.(?:py|pyx|cu|cuh|cpp|cc|c|h|rs)):\d+\)")
"""A frame of py-spy."""
TRACED = compiled(rb"#\d+ ([\w.<>]+) from (/[^\s:]+\.py):\d+")
"""A frame of a failed collective operation, as torch's flight recorder prints it."""
PYTEST = compiled(rb"^([^\s:]+\.py):\d+: (?:in (\S+)|[A-Z]\w*)")


class Frame(NamedTuple):
    """A frame: its file as printed (empty of a native one) and its function."""

    path: str
    function: str

    @property
    def place(self) -> str:
        """Module and function, as in ``scheduler.run_batch``."""
        parts = self.path.split("/")
        stem = parts[-2] if len(parts) > 1 and parts[-1] == "__init__.py" else parts[-1].rpartition(".")[0]
        function = "".join(char for char in self.function if char.isalnum() or char in "_.:~")
        if function in ("", "module"):
            return stem[:MAX_PLACE]
        return f"{stem}.{function}"[:MAX_PLACE] if stem else function[:MAX_PLACE]

    @property
    def engine(self) -> bool:
        """Return True if the file is an engine's own code."""
        parts = _parts(self.path)
        last = max((at for at, part in enumerate(parts[:-1]) if part in PACKAGES), default=-1)
        return last >= 0 and parts[last + 1] not in _NOT_ITS_OWN and ".cache" not in parts

    @property
    def library(self) -> bool:
        """Return True for a file of a library or of the interpreter, which does not say where an engine failed."""
        if self.path.startswith("<") or ("/lib/python" in self.path and "-packages/" not in self.path):
            return True
        parts = _parts(self.path)
        return "-packages/" in self.path or any(part in _LIBRARIES for part in parts)

    @property
    def waits(self) -> bool:
        """Return True if the function only waits for another thread or process."""
        name = self.function.rpartition(".")[2].lower()
        return name in _WAITING or any(word in name for word in _WAITS)


def frame_in(line: bytes) -> Frame | None:
    """The frame of Python's that a line is, as a traceback or py-spy prints it; None of any other line."""
    short = line[:LOOKED_AT]
    if b" in " in short and (found := PYTHON.search(short)):
        return _frame(found[1], found[2])
    if b" (" in short and (found := SAMPLED.search(short)):
        return _frame(found[2], found[1])
    if b" from /" in short and (found := TRACED.search(short)):
        return _frame(found[2], found[1])
    return None


def place_of(innermost_first: Iterable[Frame]) -> str:
    """The place of the innermost frame of an engine; where none is an engine's, of the innermost that is of no library;
    empty where there is none."""
    other = ""
    for frame in innermost_first:
        if frame.engine:
            return frame.place
        if not other and not frame.library:
            other = frame.place
    return other


def stuck_in(stacks: Sequence[Sequence[Frame]]) -> str:
    """The place where a process hangs: the innermost frame of the first stack that does more than wait, past those that
    wait; where all wait, of the first stack."""
    waiting = ""
    for stack in stacks:
        own = [frame for frame in stack if not frame.library]
        if not own or "watchdog" in own[0].function:
            continue
        if not stack[0].waits and not stack[0].library:
            return own[0].place
        waiting = waiting or next((frame.place for frame in own if not frame.waits), own[0].place)
    return waiting


def _parts(path: str) -> list[str]:
    """The folders and the name of a file, from its package on where it is installed."""
    for mark in ("site-packages/", "dist-packages/"):
        path = path.rpartition(mark)[2]
    return path.split("/")


def _frame(path: bytes, function: bytes) -> Frame:
    return Frame(path.decode("utf-8", "replace"), function.split(b" ")[0].decode("utf-8", "replace").strip())
