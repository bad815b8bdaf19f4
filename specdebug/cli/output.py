"""Writing results: what to do when nobody reads them, or when they cannot be written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.errors import SpecDebugError

if TYPE_CHECKING:
    from rich.console import RenderableType


class OutputError(SpecDebugError):
    """A result could not be written. It is not lost silently: the command ends with an error."""


def write(text: str) -> None:
    """Write text and a newline to stdout; characters that it cannot hold are written as escapes.

    A reader that has gone (``| head``) is nobody's error: the rest is dropped and the command's exit code
    stands. Raises OutputError when the text cannot be written for another reason, such as a full disk.
    """
    if sys.stdout is None:  # closed by whoever started us
        return
    encoding = sys.stdout.encoding or "utf-8"
    with _writing():
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()


@contextmanager
def _writing() -> Iterator[None]:
    """What :func:`write` says of a stdout that nobody reads, or that cannot be written to."""
    try:
        yield
    except BrokenPipeError:
        _discard_stdout()
    except OSError as error:
        _discard_stdout()
        raise OutputError(f"cannot write to stdout: {error.strerror}") from None


def show(renderable: RenderableType, *, fold: bool = True) -> None:
    """Render for whatever stdout is, and write; without ``fold`` a line keeps its length, to be found or copied."""
    from specdebug.report.terminal import console

    if sys.stdout is None:
        return
    canvas = console()
    with _writing():  # a console touches its stream even while it captures
        with canvas.capture() as captured:
            canvas.print(renderable, soft_wrap=not fold)
        write("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def check_writable(path: Path) -> None:
    """Raises OutputError now if a result could not be written there later."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder; name a file")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputError(f"cannot write {path}: permission denied")


def write_file(path: Path, text: str) -> None:
    """Write a result file. Raises OutputError."""
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None


def open_standard_streams() -> None:
    """Make file descriptors 0 to 2 exist: a pipe opened as number 1 would receive what is meant for
    stdout."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _discard_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter's own flush at exit cannot fail again."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):  # stdout without a descriptor, as under a test runner
        return
