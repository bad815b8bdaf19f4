"""Write to stdout, stderr and files, also where they are not read, and say when they cannot be written.

Whatever a command writes goes through here, and secrets are masked on the way.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from specdebug.base.errors import SpecDebugError
from specdebug.base.files import replace_file
from specdebug.base.redaction import redacted
from specdebug.report.foreign import shown
from specdebug.workers.machine_failure import blamed

if TYPE_CHECKING:
    from rich.console import RenderableType

Display = TypeVar("Display", bound=AbstractContextManager[Any])


class OutputError(SpecDebugError):
    """A result could not be written: by the fault of the path, or (125) of the machine, such as a full disk."""


def write(text: str) -> None:
    """Write text and a newline to stdout, with escapes for characters that it cannot hold.

    A reader that has gone (``| head``) is no error: the rest is dropped and the command's exit code stands. Raises
    OutputError when the text cannot be written for another reason, such as a full disk.
    """
    if sys.stdout is None:  # closed by whoever started us
        return
    encoding = sys.stdout.encoding or "utf-8"
    with _on_stdout():
        sys.stdout.write(redacted(text).encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()


def show(renderable: RenderableType, *, fold: bool = True) -> None:
    """Write to stdout, with lines folded between words and never cut; without ``fold`` each keeps its length."""
    from specdebug.report.terminal import console

    if sys.stdout is None:
        return
    canvas = console()
    with _on_stdout():  # a capture ends by writing nothing, and even that may fail
        with canvas.capture() as captured:
            canvas.print(renderable, soft_wrap=not fold, crop=False, overflow="ignore")
        write("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def answer(as_json: bool, document: Any, render: Callable[[], RenderableType]) -> None:
    """Write a document as JSON, or else show the same as a table or as plain text."""
    if as_json:
        from specdebug.report.document import to_json

        write(to_json(document))
    elif isinstance(report := render(), str):
        write(report)
    else:
        show(report)


def note(message: str) -> None:
    """Print a line on stderr. Where that is closed or full, nothing is left to say it with but the exit code."""
    if sys.stderr is not None:  # print() would take stdout for it
        with contextlib.suppress(OSError):
            print(redacted(message), file=sys.stderr, flush=True)


def complain(message: str) -> None:
    """Print an error line on stderr."""
    note(f"error: {shown(message)}")


@contextlib.contextmanager
def on_stderr(display: Callable[[IO[str]], Display]) -> Iterator[Display]:
    """Enter a display of progress on stderr, or on nothing where that is closed."""
    with contextlib.ExitStack() as stack:
        stream = sys.stderr or stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        entered = display(stream)
        with entered:
            yield entered


@contextlib.contextmanager
def _on_stdout() -> Iterator[None]:
    """Guard writing to stdout. Raises OutputError for any failure but a reader who has gone."""
    try:
        yield
    except BrokenPipeError:
        _discard_stdout()
    except OSError as error:
        _discard_stdout()
        raise not_written("to stdout", error) from None


def check_writable(path: Path) -> None:
    """Raises OutputError now if a result could not be written there later."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder; name a file")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputError(f"cannot write {path}: permission denied")


def write_file(path: Path, text: str) -> None:
    """Write a result file, whole or not at all; the file of before stays if it cannot. Raises OutputError."""
    data = redacted(text).encode("utf-8", errors="backslashreplace")
    try:
        replace_file(path, data)
    except OSError as error:
        raise not_written(str(path), error) from None


def not_written(what: str, error: OSError) -> OutputError:
    """Return the error for what the system would not write."""
    return blamed(OutputError, f"cannot write {what}: {error.strerror}", error)


def open_standard_streams() -> None:
    """Make file descriptors 0 to 2 exist, lest a pipe opened as number 1 receive the text meant for stdout."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _discard_stdout() -> None:
    """Send buffered text nowhere, so that the interpreter's own flush at exit cannot fail again."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):  # stdout without a descriptor, as under a test runner
        return
