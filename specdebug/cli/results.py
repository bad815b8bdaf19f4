"""A command leaves files beside what it prints, checked before it runs and written after, each of them tried; on
GitHub a step summary and annotations."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.cli.options import command_line
from specdebug.cli.output import OutputError, check_writable, write_file
from specdebug.errors import SpecDebugError

if TYPE_CHECKING:
    from specdebug.loops.compare import Comparison
    from specdebug.loops.replay import Replay
    from specdebug.loops.steplog import Recording
    from specdebug.report.github import Annotation


@dataclass(frozen=True)
class ReplayFiles:
    """The files wanted of a replay, or of a comparison, beside the report on stdout."""

    junit: Path | None = None
    html: Path | None = None
    perfetto: Path | None = None
    json: Path | None = None

    def check(self) -> None:
        """Raises OutputError when one of them could not be written."""
        check_files(self.junit, self.html, self.perfetto, self.json)

    def recording(self) -> Recording | None:
        """Return where to keep the steps, if any file shows them."""
        from specdebug.loops.steplog import Recording

        return Recording() if self.html is not None or self.perfetto is not None else None

    def write(self, answer: Replay, recording: Recording | None, document: Callable[[], str]) -> None:
        """Write them, and tell GitHub. Raises OutputError, after all have been tried."""

        def junit() -> str:
            from specdebug.report.junit import junit_xml

            return junit_xml([answer])

        def html() -> str:
            from specdebug.report.html.replay import replay_page

            assert recording is not None  # since a page is wanted
            return replay_page(answer, recording, command_line())

        def perfetto() -> str:
            from specdebug.report.perfetto import perfetto_json

            assert recording is not None
            return perfetto_json(answer, recording)

        def summary() -> str:
            from specdebug.report.github import replay_summary

            return replay_summary(answer)

        def annotations() -> list[Annotation]:
            from specdebug.report.github import replay_annotations

            return replay_annotations(answer)

        try:
            write_files((self.junit, junit), (self.html, html), (self.perfetto, perfetto), (self.json, document))
        finally:
            tell_github(summary, annotations)

    def write_comparison(
        self, answer: Replay, comparison: Comparison, recording: Recording | None, document: Callable[[], str]
    ) -> None:
        """The same for two arms that were compared."""

        def junit() -> str:
            from specdebug.report.junit import verdict_xml
            from specdebug.report.terminal import comparison_line

            case = " and ".join(comparison.names)
            said = comparison_line(comparison)
            return verdict_xml(answer.scenario.name, case, comparison.exit_code, said, answer.wall_s)

        def html() -> str:
            from specdebug.report.html.compare import compare_page

            assert recording is not None
            return compare_page(answer, comparison, recording, command_line())

        def summary() -> str:
            from specdebug.report.github import comparison_summary

            return comparison_summary(answer, comparison)

        def annotations() -> list[Annotation]:
            from specdebug.report.github import comparison_annotations

            return comparison_annotations(answer, comparison)

        try:
            write_files((self.junit, junit), (self.html, html), (self.json, document))
        finally:
            tell_github(summary, annotations)


def check_files(*paths: Path | None) -> None:
    """Raises OutputError when a file that is wanted could not be written."""
    for path in paths:
        if path is not None:
            check_writable(path)


def write_files(*files: tuple[Path | None, Callable[[], str]]) -> None:
    """Write every file that is wanted. Raises the first OutputError, after all have been tried."""
    failures: list[OutputError] = []
    for path, text in files:
        if path is None:
            continue
        try:
            write_file(path, text())
        except OutputError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def tell_work(trouble: SpecDebugError | None, report: Callable[[], None], keep: Callable[[], None]) -> None:
    """Call ``report``, which prints, then ``keep``, which writes files, also where stdout is gone.

    Raises what cut the work short, if that was an error: what else cannot be written then is so for the same reason, or
    can be had by the same command again. Otherwise OutputError where one of the two could not write.
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
    """Inside a GitHub Actions job, add to the step's summary and print the annotations: on stderr, where the runner
    looks for them, too, and they are in no document's way. Elsewhere, nothing. Raises OutputError."""
    from specdebug.report.github import ACTIONS_VARIABLE, SUMMARY_VARIABLE

    if os.environ.get(ACTIONS_VARIABLE) == "true" and sys.stderr is not None:
        for annotation in annotations():
            print(annotation.command(), file=sys.stderr, flush=True)
    if path := os.environ.get(SUMMARY_VARIABLE):
        try:
            with open(path, "a", encoding="utf-8", errors="replace") as file:
                file.write(summary())
        except OSError as error:
            raise OutputError(f"cannot write the step summary {path}: {error.strerror}") from None
