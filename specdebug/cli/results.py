"""The results of a command: a report or a JSON document on stdout, then files, each of them tried, and GitHub."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from specdebug.cli.options import JsonOptions, ResultOptions, command_line
from specdebug.cli.output import OutputError, note, show, write, write_file
from specdebug.errors import SpecDebugError
from specdebug.plugins import PluginError
from specdebug.report.foreign import shown

if TYPE_CHECKING:
    from specdebug.bundle.again import Again
    from specdebug.loops.replay import Replay
    from specdebug.loops.steplog import Recording
    from specdebug.report.formats import Told
    from specdebug.report.github import Annotation

WantedFile: TypeAlias = tuple[Path | None, Callable[[], str]]
"""The path of a file, None where it is not wanted, and its text."""


def tell_results(
    options: JsonOptions,
    document: Callable[[], Any],
    report: Callable[[], None],
    *files: WantedFile,
    summary: Callable[[], str] | None = None,
    annotations: Callable[[], Sequence[Annotation]] = lambda: (),
    trouble: SpecDebugError | None = None,
) -> None:
    """Print the report, or the JSON document in its place; write the files and tell GitHub. Raises as tell_work."""

    @cache
    def text() -> str:
        from specdebug.report.document import to_json

        return to_json(document())

    def keep() -> None:
        try:
            write_files(*files, (options.json_file, lambda: text() + "\n"))
        finally:
            if summary is not None:
                tell_github(summary, annotations)

    tell_work(trouble, lambda: write(text()) if options.as_json else report(), keep)


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


def write_files(*files: WantedFile) -> None:
    """Write every file that is wanted. Raises the first error, after all have been tried."""
    failures: list[SpecDebugError] = []
    for path, text in files:
        try:
            if path is not None:
                write_file(path, text())
        except (OutputError, PluginError) as error:
            failures.append(error)
    if failures:
        raise failures[0]


def tell_work(trouble: SpecDebugError | None, report: Callable[[], None], keep: Callable[[], None]) -> None:
    """Call ``report``, which prints, then ``keep``, which writes files, also where stdout is gone.

    Raises ``trouble``, the error that cut the work short, if there is one: an output that cannot be written then has
    the same cause, or can be had by the same command again. Otherwise OutputError where one of the two could not write.
    """
    try:
        try:
            report()
        finally:
            keep()
    except OutputError:
        if trouble is None:
            raise
    if trouble is not None:
        raise trouble


def tell_github(summary: Callable[[], str], annotations: Callable[[], Sequence[Annotation]] = lambda: ()) -> None:
    """Inside a GitHub Actions job, add to the step's summary and print the annotations. Raises OutputError."""
    from specdebug.report.github import ACTIONS_VARIABLE, SUMMARY_VARIABLE

    if os.environ.get(ACTIONS_VARIABLE) == "true":
        for annotation in annotations():  # the runner looks for them on stderr, too, and no document is there
            note(annotation.command())
    if path := os.environ.get(SUMMARY_VARIABLE):
        try:
            with open(path, "a", encoding="utf-8", errors="replace") as file:
                file.write(summary())
        except OSError as error:
            raise OutputError(f"cannot write the step summary {path}: {error.strerror}") from None
