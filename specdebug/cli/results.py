"""Files that a command writes beside what it prints: checked before it runs, written after, and each tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.cli.options import command_line
from specdebug.cli.output import OutputError, check_writable, write_file

if TYPE_CHECKING:
    from specdebug.harness.replay import Replay
    from specdebug.harness.steplog import Recording


@dataclass(frozen=True)
class ReplayFiles:
    """What is wanted of a replay beside the report on stdout."""

    junit: Path | None = None
    html: Path | None = None
    perfetto: Path | None = None

    def check(self) -> None:
        """Raises OutputError when one of them could not be written."""
        for path in (self.junit, self.html, self.perfetto):
            if path is not None:
                check_writable(path)

    def recording(self) -> Recording | None:
        """Where to keep the steps, if any file shows them."""
        from specdebug.harness.steplog import Recording

        return Recording() if self.html is not None or self.perfetto is not None else None

    def write(self, answer: Replay, recording: Recording | None) -> None:
        """Write them. Raises OutputError, after all have been tried."""

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

        write_files((self.junit, junit), (self.html, html), (self.perfetto, perfetto))


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
