"""The results of a command: a report or a JSON document on stdout, then files, each of them tried, and GitHub."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from specdebug.base.errors import CannotRunHere, SpecDebugError, one_line
from specdebug.base.redaction import redacted
from specdebug.cli.options import JsonOptions, ResultOptions, command_line, debug_wanted
from specdebug.cli.output import OutputError, complain, not_written, note, show, write, write_file
from specdebug.report.foreign import shown
from specdebug.workers.machine_failure import machine_failure

if TYPE_CHECKING:
    from specdebug.bundle.again import Again
    from specdebug.campaign.loops.replay import Replay
    from specdebug.campaign.loops.steplog import Recording
    from specdebug.report.formats import Told
    from specdebug.report.github import Annotation

WantedFile: TypeAlias = tuple[Path | None, Callable[[], str]]
"""The path of a file, None where it is not wanted, and its text."""
Work: TypeAlias = tuple[str, Callable[[], None]]
"""Something that tells of results, by its name."""


class ReportFailed(SpecDebugError):
    """A report could not be made, which is our own fault. All others were told."""

    exit_code = 3


def tell_results(
    options: JsonOptions,
    document: Callable[[], Any],
    report: Callable[[], None],
    *files: WantedFile,
    summary: Callable[[], str] | None = None,
    annotations: Callable[[], Sequence[Annotation]] = lambda: (),
    trouble: SpecDebugError | None = None,
) -> None:
    """Print the report, or the JSON document in its place; write the files and tell GitHub. Raises as tell_all."""

    @cache
    def text() -> str:
        from specdebug.report.document import to_json

        return to_json(document())

    works: list[Work] = [("the report", lambda: write(text()) if options.as_json else report())]
    for path, content in ((options.json_file, lambda: text() + "\n"), *files):
        if path is not None:
            works.append((str(path), partial(_write, path, content)))
    if summary is not None:
        works.append(("what GitHub is told", lambda: tell_github(summary, annotations)))
    tell_all(trouble, works)


def tell_replay(answer: Replay, options: ResultOptions, recording: Recording | None, again: Again | None = None) -> int:
    """Tell the results of one scenario, or of a bundle that was run ``again``, and return the exit code."""
    from specdebug.report.document import replay_document
    from specdebug.report.formats import Told
    from specdebug.report.github import replay_annotations, replay_summary
    from specdebug.report.terminal import render_replay

    def report() -> None:
        show(render_replay(answer))
        if again is not None:
            write("\n".join(map(shown, again.lines)))

    tell_results(
        options,
        lambda: replay_document(answer) | ({} if again is None else again.to_dict()),
        report,
        *files_of(options, Told(answer, None, recording, command_line())),
        summary=lambda: replay_summary(answer),
        annotations=lambda: replay_annotations(answer),
    )
    return answer.exit_code


def files_of(options: ResultOptions, told: Told) -> list[WantedFile]:
    """The files that are wanted of a replay or a comparison, besides the JSON document."""
    from specdebug.report.formats import render

    return [(path, partial(render, name, told)) for name, path in options.wanted()]


def tell_all(trouble: SpecDebugError | None, works: Iterable[Work]) -> None:
    """Do each of these, whatever becomes of the others: also where stdout is gone, or one report is at fault.

    Raises ``trouble``, the error that cut the work short, if there is one: an output that cannot be written then has
    the same cause, or can be had by the same command again. Otherwise the gravest of what failed, ReportFailed if a
    report could not be made; the others are said on stderr.
    """
    failures = [error for error in starmap(_failure_of, works) if error is not None]
    if trouble is not None:
        failures = [error for error in failures if not isinstance(error, OutputError)]
    raised = trouble or max(
        failures, key=lambda error: (isinstance(error, ReportFailed), error.exit_code), default=None
    )
    for error in failures:
        if error is not raised:
            complain(str(error))
    if raised is not None:
        raise raised


def _failure_of(name: str, work: Callable[[], None]) -> SpecDebugError | None:
    try:
        work()
    except SpecDebugError as error:
        return error
    except Exception as error:
        failed = _told(name, error)
        failed.__cause__ = error
        return failed
    return None


def _told(name: str, error: Exception) -> SpecDebugError:
    machine = machine_failure(error)
    if machine is not None:
        return CannotRunHere(f"{name} could not be made: {machine.reason}")
    hint = "" if debug_wanted() else " (--debug shows where; please report it)"
    what = f"{type(error).__name__}: {one_line(str(error))}"
    return ReportFailed(f"internal error: {name} could not be made: {what}{hint}")


def _write(path: Path, content: Callable[[], str]) -> None:
    write_file(path, content())


def tell_github(summary: Callable[[], str], annotations: Callable[[], Sequence[Annotation]] = lambda: ()) -> None:
    """Inside a GitHub Actions job, add to the step's summary and print the annotations. Raises OutputError."""
    from specdebug.report.github import ACTIONS_VARIABLE, SUMMARY_VARIABLE

    if os.environ.get(ACTIONS_VARIABLE) == "true":
        for annotation in annotations():  # the runner looks for them on stderr, too, and no document is there
            note(annotation.command())
    if path := os.environ.get(SUMMARY_VARIABLE):
        try:
            with open(path, "a", encoding="utf-8", errors="replace") as file:
                file.write(redacted(summary()))
        except OSError as error:
            raise not_written(f"the step summary {path}", error) from None
