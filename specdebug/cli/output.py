"""The output of a command: to stdout, stderr and files, also where they are not read; and workers with their progress.

A result is told by :func:`tell` or :func:`answer`: the report or a JSON document on stdout, then files, each of them
tried, and GitHub. Whatever a command writes goes through here, and secrets are masked on the way.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias, TypeVar

from specdebug.base.errors import CannotRunHere, SpecDebugError
from specdebug.base.files import replace_file
from specdebug.base.redaction import redacted
from specdebug.report.parts import Line
from specdebug.report.words import shown
from specdebug.workers.machine_failure import blamed, machine_failure

if TYPE_CHECKING:
    from rich.console import RenderableType

    from specdebug.cli.options import JsonOptions
    from specdebug.report.parts import Report
    from specdebug.report.progress import PlainLines, RunProgress
    from specdebug.workers.pool import WorkerPool

UNDECIDED = 125
"""The exit code of a command that came to no answer."""
FOLDER = Path(".specdebug")
"""The folder for files without a place of their own."""
SILENCE_S = 1.5
"""Seconds without a line on stderr after which one says what is being done."""

Display = TypeVar("Display", bound="PlainLines")
WantedFile: TypeAlias = tuple[Path | None, Callable[[], str]]
"""The path of a file, None where it is not wanted, and its text."""
Work: TypeAlias = tuple[str, Callable[[], None]]
"""Something that tells of results, by its name."""


class OutputError(SpecDebugError):
    """A result could not be written: by the fault of the path, or (125) of the machine, such as a full disk."""


class ReportFailed(SpecDebugError):
    """A report could not be made, which is our own fault. All others were told."""

    exit_code = 3


@dataclass
class KeptOutput:
    """What commands told while their output was kept: their ``reports``, and what they would have printed."""

    reports: list[Report] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


class _State:
    kept: KeptOutput | None = None
    debug = False
    quiet = False
    argv: tuple[str, ...] = ()
    display: PlainLines | None = None
    began = said_at = 0.0


def begin_command_line(argv: Sequence[str]) -> None:
    """Remember the command line for reports, and forget the ``--debug`` of one before: tests run several."""
    _State.debug, _State.quiet, _State.argv = False, False, tuple(argv)


@contextlib.contextmanager
def kept() -> Iterator[KeptOutput]:
    """Keep what the commands that run meanwhile tell, instead of printing it; files they write all the same."""
    before = _State.debug, _State.quiet, _State.argv
    _State.kept = KeptOutput()
    try:
        yield _State.kept
    finally:
        _State.kept, (_State.debug, _State.quiet, _State.argv) = None, before


def command_line() -> str:
    """The command as one would type it."""
    return shlex.join(("specdebug", *_State.argv))


def set_debug(value: bool) -> bool:
    """Show tracebacks from now on, if ``value``, which is returned."""
    _State.debug = _State.debug or value
    return value


def set_quiet(value: bool) -> bool:
    """Show no progress from now on, if ``value``, which is returned."""
    _State.quiet = _State.quiet or value
    return value


def internal_error(error: Exception, what: str = "") -> str:
    """The line on a fault of ours."""
    hint = "" if _State.debug else " (--debug shows where; please report it)"
    return f"internal error: {what}{type(error).__name__}: {' '.join(str(error).split())}{hint}"


def debug_wanted() -> bool:
    """Return True if ``--debug`` was given."""
    return _State.debug


def write(text: str) -> None:
    """Write text and a newline to stdout, with escapes for characters that it cannot hold.

    A reader that has gone (``| head``) is no error: the rest is dropped and the command's exit code stands. Raises
    OutputError when the text cannot be written for another reason, such as a full disk.
    """
    if _State.kept is not None:
        _State.kept.said.append(redacted(text))
        return
    if sys.stdout is None:  # closed by the parent
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


def show_report(report: Report, *, verbose: bool = False) -> None:
    """Write a report to stdout: its summary alone where we are to be quiet; ``verbose``: the parts of its page, too."""
    from specdebug.report.terminal import drawn

    if _State.quiet:
        show(drawn([Line(report.summary)]))
        return
    show(drawn(report.parts))
    if verbose and (page := report.page()):
        show(drawn(page))


def answer(as_json: bool, report: Report) -> int:
    """Write a report, or its document as JSON in its place, and return the exit code."""
    if _State.kept is not None:
        _State.kept.reports.append(report)
    if as_json:
        from specdebug.report.formats import to_json

        write(to_json(report.document))
    else:
        show_report(report)
    return report.exit_code


def note(message: str) -> None:
    """Print a line on stderr. Where that is closed or full, nothing is left to say it with but the exit code."""
    if sys.stderr is not None:  # print() would take stdout for it
        _State.said_at = time.monotonic()
        with contextlib.suppress(OSError):
            print(redacted(message), file=sys.stderr, flush=True)


def complain(message: str) -> None:
    """Print an error line on stderr."""
    if _State.kept is None:
        note(f"error: {shown(message)}")
    else:  # of a stage, which is not the command's own error
        note(shown(message))
        _State.kept.said.append(redacted(f"error: {shown(message)}"))


@contextlib.contextmanager
def on_stderr(display: Callable[[IO[str]], Display]) -> Iterator[Display]:
    """Enter a display of progress on stderr, or on nothing where that is closed."""
    with contextlib.ExitStack() as stack:
        seen = None if _State.quiet else sys.stderr
        stream = seen or stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        entered = display(stream)
        with entered:
            _State.display = entered
            try:
                yield entered
            finally:
                _State.display = None


def beat() -> None:
    """Say on stderr what is being done if it was silent for a while, later for a tenth of the time so far."""
    display, now = _State.display, time.monotonic()
    said_at, so_far = max(_State.said_at, display.said_at if display else 0), now - _State.began
    if not (_State.quiet or (display and display.live)) and now - said_at >= max(SILENCE_S, so_far / 10):
        note(f"{display.doing() if display else 'working'}, {so_far:.0f} s so far")


@contextlib.contextmanager
def heartbeat() -> Iterator[None]:
    """Meanwhile nothing is silent for long."""
    _State.began = _State.said_at = time.monotonic()
    ended = threading.Event()

    def beats() -> None:
        while not ended.wait(0.1):
            beat()

    thread = threading.Thread(target=beats, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def progress() -> AbstractContextManager[RunProgress]:
    """The display of runs on stderr."""
    from specdebug.report.progress import RunProgress

    return on_stderr(RunProgress)


@contextlib.contextmanager
def workers(jobs: int) -> Iterator[WorkerPool]:
    """Start workers, which get ready while the caller reads and checks their work."""
    from specdebug.campaign.preload import PRELOAD
    from specdebug.workers.pool import WorkerPool

    with WorkerPool(jobs, PRELOAD) as pool:
        pool.start()
        yield pool


def tell_rerun(count: int) -> None:
    """Say on stderr how many trials were lost with their worker and made once more."""
    if count:
        whose = "1 trial whose worker was" if count == 1 else f"{count} trials whose workers were"
        note(f"{whose} killed, or lost the device, ran again: nothing of that counts")


@contextlib.contextmanager
def _on_stdout() -> Iterator[None]:
    """Guard writing to stdout. Raises OutputError for any failure but a reader who has gone."""
    try:
        yield
    except OSError as error:
        # What is buffered goes nowhere, so that the interpreter's own flush at exit cannot fail again; under a test
        # runner stdout has no descriptor.
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
        if not isinstance(error, BrokenPipeError):
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
    try:
        replace_file(path, redacted(text).encode("utf-8", errors="backslashreplace"))
    except OSError as error:
        raise not_written(str(path), error) from None


def not_written(what: str, error: OSError) -> OutputError:
    """The error for what the system would not write."""
    return blamed(OutputError, f"cannot write {what}: {error.strerror}", error)


def own_folder() -> Path:
    """Make our folder, tell git to ignore it, and return it."""
    with contextlib.suppress(OSError, OutputError):  # the next to write to it will say so
        FOLDER.mkdir()
        write_file(FOLDER / ".gitignore", "*\n")
    return FOLDER


def open_standard_streams() -> None:
    """Make file descriptors 0 to 2 exist, lest a pipe opened as number 1 receive the text meant for stdout."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def tell(report: Report, options: JsonOptions, *files: WantedFile, trouble: SpecDebugError | None = None) -> int:
    """Print a report, or its document; write the files that are wanted, tell GitHub, and return the exit code.

    ``files``: more of them. Raises as :func:`tell_all`.
    """
    from specdebug.report import formats

    line = command_line()
    report = replace(report, line=line, inner=[replace(each, line=line) for each in report.inner])
    if _State.kept is not None:
        _State.kept.reports.append(report)
    text = cache(lambda: formats.to_json(report.document))
    works: list[Work] = [
        ("the report", lambda: write(text()) if options.as_json else show_report(report, verbose=options.verbose))
    ]
    wanted: list[WantedFile] = [(options.json_file, lambda: text() + "\n"), *files]
    wanted += [(path, partial(formats.render, name, report)) for name, path in options.wanted()]
    works += [
        (str(path), lambda path=path, made=made: write_file(path, made()))  # type: ignore[misc]
        for path, made in wanted
        if path is not None
    ]
    tell_all(trouble, [*works, ("what GitHub is told", partial(tell_github, report))])
    return report.exit_code


def tell_all(trouble: SpecDebugError | None, works: Iterable[Work]) -> None:
    """Do each of these, whatever becomes of the others: also where stdout is gone, or one report is at fault.

    Raises ``trouble``, the error that cut the work short, if there is one: an output that cannot be written then has
    the same cause, or can be had by the same command again. Otherwise the gravest of what failed, ReportFailed if a
    report could not be made; the others are said on stderr.
    """
    failures: list[SpecDebugError] = []
    for name, work in works:
        try:
            work()
        except SpecDebugError as error:
            failures.append(error)
        except Exception as error:
            machine = machine_failure(error)
            failed = ReportFailed(internal_error(error, f"{name} could not be made: "))
            cause = failed if machine is None else CannotRunHere(f"{name} could not be made: {machine.reason}")
            cause.__cause__ = error
            failures.append(cause)
    if trouble is not None:
        failures = [error for error in failures if not isinstance(error, OutputError)]
    gravest = max(failures, key=lambda error: (isinstance(error, ReportFailed), error.exit_code), default=None)
    raised = trouble or gravest
    for failure in failures:
        if failure is not raised:
            complain(str(failure))
    if raised is not None:
        raise raised


def tell_github(report: Report) -> None:
    """Inside a GitHub Actions job, add to the step's summary and print the annotations. Raises OutputError."""
    from specdebug.report import markdown as github

    if _State.kept is not None:
        return
    if os.environ.get(github.ACTIONS_VARIABLE) == "true":
        for annotation in github.commands(report):  # the runner reads stderr, too, and no document is there
            note(annotation)
    if path := os.environ.get(github.SUMMARY_VARIABLE):
        try:
            with open(path, "a", encoding="utf-8", errors="replace") as file:
                file.write(redacted(github.summary(report)))
        except OSError as error:
            raise not_written(f"the step summary {path}", error) from None
