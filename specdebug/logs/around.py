"""The surroundings of a line that tells of a failure: its stack, the statement that raised it, and what became of it.

Lines of several processes may be mixed: frames count that have the same beginning as the line itself, if there are any.
Frames come in the forms of all printers: Python's tracebacks have the innermost last; py-spy, faulthandler and native
backtraces have it first.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from specdebug.logs.patterns import Match, Pattern, compiled

MAX_PLACE = 60
LOOKED_AT = 2000  # bytes of a line in which a frame is looked for

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


REACH = 200  # lines above a line in which its stack, or the headline of its test, is looked for
_GAP = 12  # lines of others that may stand between two of a stack
_STACKS = 80  # lines above and below a hang in which stacks are looked for

_TRACEBACK = b"Traceback (most recent call last)"
_CHAINED = (b"During handling of the above", b"The above exception was the direct cause")
_CARETS = b"^~ \t|"
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_FATAL = compiled(
    rb"(?i:\bfatal\b|hit an exception|unhandled|uncaught|event loop|\bcrash|method \w+ encountered an error|"
    rb"worker\S* (?:died|failed|hit)|background loop|in process|^(?:[^\n]*[ \t])?process \S+:$)"
)
_SERVED = compiled(rb"(?i:ASGI|exception ignored in|handling request|in request)")
_RETRY = compiled(
    rb"(?i:\bretr(?:y|ies|ied|ying)\b|\battempts? #?\d+|\btrying again\b|\bbacking off\b|\bfalling back\b|"
    rb"\bresum(?:e|ing)\b[^\n]{0,30}\bdownload|\bexception ignored\b)"
)
_GIVEN_UP = compiled(
    rb"(?i:max retries|giving up|gave up|no more retries|retries exhausted|without retr|after \d+ retries)"
)
_QUIET = compiled(rb"(?:^|[^\w])(?:WARN(?:ING)?|INFO|DEBUG|[Ww]arning|Exception ignored in)\b")
_REPORT = compiled(rb"^(?:\S+Z )?(?:FAIL|ERROR): \w+ \(|^(?:\S+Z )?_{3,} (?:ERROR [a-z ]+ )?\S+ _{3,}$")
_DEFINED = compiled(rb"^(?:\S+Z )?(?:E?>?[ \t]+)(?:async )?def (\w+)\(")
_RAISED = compiled(rb"^[A-Za-z_][\w.]*(?:Error|Exception)(?::[ \t]|$)")
_ERROR_LINE = compiled(rb"^[ \t]*E[ \t]+\S")
_MARKED = compiled(rb"^(?:\S+Z )?[ \t]*>[ \t]+([^\n]+)")
_THREAD = compiled(rb"(?:^|[ \t])Thread (?:0x)?[0-9a-fA-F]+|[Tt]hread 0x[0-9a-f]+|(?i:py-?spy dump)")


class Around:
    """The surroundings of a line.

    Args:
        lines: the lines of a block, and some before them.
        index: the line's place among them.
        at: where in the line the message begins; what is before it is the head of each line of its record.
    """

    def __init__(self, lines: Sequence[bytes], index: int, at: int) -> None:
        self._lines = lines
        self._index = index
        self._line = lines[index]
        self._at = at
        self._head = self._line[max(0, at - LOOKED_AT) : at].rstrip()

    @property
    def head(self) -> bytes:
        """The text of the line before the message."""
        return self._head

    @property
    def said(self) -> bytes:
        """The message and the rest of its line."""
        return self._line[self._at : self._at + LOOKED_AT]

    def line(self, offset: int) -> bytes:
        """The line so many lines further down, or up; empty where there is none."""
        number = self._index + offset
        return self._lines[number][:LOOKED_AT] if 0 <= number < len(self._lines) else b""

    @cached_property
    def place(self) -> str:
        """Module and function of the innermost frame that is an engine's own, else of one of no library; empty where
        none is known."""
        return place_of([frame for _, frame in self._frames] or self._of_pytest)

    @cached_property
    def source(self) -> bytes:
        """The statement that raised, as the traceback quotes it; empty where it is not there."""
        if not self._frames:
            return self._marked()
        lines = [self.line(offset) for offset in range(self._frames[0][0] + 1, min(0, self._frames[0][0] + 20))]
        own = [line for line in lines if line.startswith(self._head)] or lines
        return b" ".join(text for text in (_less(line, self._head).strip() for line in own) if text.strip(_CARETS))

    @cached_property
    def stuck(self) -> str:
        """Where a process hangs, by the stacks above and below the line; empty where there are none."""
        stacks: list[list[Frame]] = [[]]
        for offset in range(-_STACKS, _STACKS):
            line = self.line(offset)
            frame = frame_in(line)
            if frame is None:
                if stacks[-1] and (_THREAD.search(line) or not line.startswith(b" ")):
                    stacks.append([])
                continue
            last_first = b'", line ' in line and b", in " in line
            stacks[-1].insert(0 if last_first else len(stacks[-1]), frame)
        return stuck_in([stack for stack in stacks if stack])

    @cached_property
    def fatal(self) -> bool:
        """Return True if the record's headline says that a process of the engine ended with it."""
        headline = self._headline
        return _FATAL.search(headline) is not None and _SERVED.search(headline) is None

    @cached_property
    def passed_over(self) -> bool:
        """Return True if it was tried again, or is said as a warning."""
        told = b"\n".join((self._line[self._at : self._at + LOOKED_AT], self.line(1), self.line(2), self._headline))
        if _GIVEN_UP.search(told) is None and _RETRY.search(told) is not None:
            return True
        return _QUIET.search(self._head) is not None or _QUIET.search(self._headline.partition(b"\n")[0]) is not None

    @cached_property
    def reported(self) -> bool:
        """Return True if it stands in the report of a test."""
        if self._of_pytest_line:
            return True
        _, begun = self._walked
        return any(_REPORT.search(self.line(begun - up)) is not None for up in (1, 2, 3))

    # The traceback.

    @cached_property
    def _walked(self) -> tuple[list[tuple[int, bytes, Frame]], int]:
        """The frames above the line, the innermost first, each with its offset and the head of its line; and the offset
        at which the traceback begins."""
        found = [
            (0, self._head, _python(one)) for one in reversed(list(PYTHON.finditer(self._line[: self._at][-8000:])))
        ]
        gap, begun = 0, 0
        for offset in range(-1, -REACH, -1) if not found else ():
            line = self.line(offset)
            if not line and self._index + offset < 0:
                break
            if (frame := PYTHON.search(line)) is not None:
                found.append((offset, line[: frame.start()].rstrip(), _python(frame)))
                gap, begun = 0, offset
            elif _TRACEBACK in line:
                begun = offset
                break
            elif any(mark in line for mark in _CHAINED):
                break
            elif line.startswith(self._head) and _RAISED.search(line[len(self._head) :].lstrip()) is not None:
                break  # another exception of the same process
            else:
                gap += 1
                if gap > _GAP:
                    break
        return found, begun

    @cached_property
    def _frames(self) -> list[tuple[int, Frame]]:
        """Of the frames above the line those of its own record."""
        found, _ = self._walked
        for same in (lambda head: head == self._head, lambda head: _alike(head) == _alike(self._head)):
            own = [(offset, frame) for offset, head, frame in found if same(head)]
            if own:
                return own
        return [(offset, frame) for offset, _, frame in found]

    @cached_property
    def _headline(self) -> bytes:
        """The line with which a record begins, and the one before it."""
        _, begun = self._walked
        if begun == 0:
            return self._head
        return self.line(begun).partition(_TRACEBACK)[0] + b"\n" + self.line(begun - 1)

    # pytest's own form: the statement is marked with >, and the location stands below the error's lines.

    @property
    def _of_pytest_line(self) -> bool:
        return self._head.endswith((b" E", b"\tE")) or self._head == b"E" or _ERROR_LINE.search(self.said) is not None

    @cached_property
    def _of_pytest(self) -> list[Frame]:
        if not self._of_pytest_line:
            return []
        for offset in (*range(30), *range(-1, -_GAP, -1)):
            if (found := PYTEST.search(self.line(offset))) is not None:
                function = found[2] or self._above(_DEFINED) or b""
                return [Frame(_text(found[1]), _text(function))]
        return []

    def _marked(self) -> bytes:
        for offset in range(-1, -_GAP, -1):
            text = self.line(offset)
            if (found := _MARKED.search(text)) is not None:
                return bytes(found[1]).strip()
        return self.line(-1).strip() if self._of_pytest_line else b""

    def _above(self, pattern: Pattern) -> bytes:
        for offset in range(-1, -REACH, -1):
            if (found := pattern.search(self.line(offset))) is not None:
                return bytes(found[1])
        return b""


def _python(found: Match) -> Frame:
    return Frame(_text(found[1]), _text(found[2].split(b" ")[0]))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()


def _alike(head: bytes) -> bytes:
    return head.translate(_DIGITS)


def _less(line: bytes, head: bytes) -> bytes:
    """A line without the head of its record, or without one that differs in digits."""
    if head and (line.startswith(head) or _alike(line[: len(head)]) == _alike(head)):
        return line[len(head) :]
    return line
