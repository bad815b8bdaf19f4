"""The scenarios of ``specdebug replay``: one, with the reports it always had, or several, with one summary."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from specdebug.cli.options import command_line
from specdebug.cli.output import OutputError, check_writable, show, write
from specdebug.cli.results import ReplayFiles, check_files, tell_github, write_files
from specdebug.cli.trials import own_folder
from specdebug.errors import SpecDebugError

if TYPE_CHECKING:
    from specdebug.loops.replay import Choices, Progress, Replay
    from specdebug.loops.replays import Plan, Replays
    from specdebug.loops.steplog import Recording
    from specdebug.scenario.library import Library
    from specdebug.workers.pool import WorkerPool

FOLDER = Path(".specdebug")
"""Of the working directory; ``own_folder`` makes it."""


@dataclass(frozen=True)
class FilesOfSeveral:
    """The files wanted of several scenarios beside the report on stdout. ``pages``: a folder, with a page for each."""

    junit: Path | None = None
    pages: Path | None = None
    json: Path | None = None

    def check(self) -> None:
        """Raises OutputError when one of them could not be written."""
        check_files(self.junit, self.json)
        if self.pages is not None and self.pages.exists() and not self.pages.is_dir():
            raise OutputError(f"{self.pages} is a file; of several scenarios --html names a folder")
        if self.pages is not None and not self.pages.exists():
            check_writable(self.pages)

    def recording(self) -> Recording | None:
        """Return where to keep the steps, if pages show them."""
        from specdebug.loops.steplog import Recording

        return None if self.pages is None else Recording()

    def write(self, answer: Replays, recording: Recording | None, document: str) -> None:
        """Write them, and tell GitHub. Raises OutputError, after all have been tried."""
        from specdebug.loops.replays import labels_of
        from specdebug.report.github import replay_annotations
        from specdebug.report.html.replay import replay_page
        from specdebug.report.junit import junit_xml
        from specdebug.report.replays import replays_summary

        pages = []
        if self.pages is not None and recording is not None:
            with contextlib.suppress(OSError):  # writing the pages will say so
                self.pages.mkdir(exist_ok=True)
            labels = labels_of([replay.scenario for replay in answer.replays])
            for label, replay in zip(labels, answer.replays, strict=True):
                path = self.pages / f"{label.strip(os.sep).replace(os.sep, '-')}.html"
                pages.append((path, lambda one=replay: replay_page(one, recording, command_line())))
        try:
            write_files((self.junit, lambda: junit_xml(answer.replays)), (self.json, lambda: document + "\n"), *pages)
        finally:
            tell_github(
                lambda: replays_summary(answer),
                lambda: [note for replay in answer.replays for note in replay_annotations(replay)],
            )


Wanted: TypeAlias = ReplayFiles | FilesOfSeveral


def results_wanted(library: Library, named: Sequence[str], files: ReplayFiles) -> Wanted:
    """The files as one scenario leaves them, or as several do. Raises SpecDebugError for a trace of several."""
    if len(named) == 1 and not library.is_folder(named[0]):
        return files
    if files.perfetto is not None:
        raise SpecDebugError("--perfetto is of one scenario; name a single file")
    return FilesOfSeveral(files.junit, files.html, files.json)


def plan_named(
    library: Library, named: Sequence[str], choices: Choices, keyword: str | None, *, last_failed: bool
) -> list[Plan]:
    """Return what is to be run of the scenarios that were named, and say on stderr what ``--lf`` came to."""
    from specdebug.loops.last_failed import LastFailed
    from specdebug.loops.replays import only_failed, plan_all
    from specdebug.loops.selection import parse_expression

    record = LastFailed.read(FOLDER)
    if not named and not record.files:
        raise SpecDebugError("--lf: no failure is recorded in this folder; name a FILE to run")
    expression = None if keyword is None else parse_expression(keyword)
    plans = plan_all(library.gather(named or record.files), choices, library, expression)
    if last_failed:
        plans, said = only_failed(plans, record)
        if sys.stderr is not None:
            print(f"--lf: {said}", file=sys.stderr, flush=True)
    return plans


def run_plans(
    pool: WorkerPool,
    library: Library,
    plans: Sequence[Plan],
    watching: AbstractContextManager[Progress],
    wanted: Wanted,
    *,
    as_json: bool,
) -> int:
    """Run them, keep which arms failed, report, and return the exit code."""
    from specdebug.loops.last_failed import LastFailed
    from specdebug.loops.replays import replay_all

    recording = wanted.recording()
    with watching as watcher:
        answer = replay_all(pool, library, plans, watcher, recording)
    results = [result for replay in answer.replays for result in replay.results]
    known = [result for result in results if not result.outcome.interrupted]
    LastFailed.read(FOLDER).update(known, own_folder)
    if answer.trouble is not None and (isinstance(wanted, ReplayFiles) or not results):
        raise answer.trouble
    _report(answer, recording, wanted, as_json=as_json)
    if answer.trouble is not None:
        raise answer.trouble
    return answer.exit_code


def _report(answer: Replays, recording: Recording | None, wanted: Wanted, *, as_json: bool) -> None:
    """The report on stdout, then the files, also where stdout is gone."""
    from specdebug.report.document import to_json
    from specdebug.report.replays import render_replays, replays_document

    if isinstance(wanted, ReplayFiles):
        (alone,) = answer.replays
        tell(alone, wanted, recording, as_json=as_json)
        return
    text = to_json(replays_document(answer))
    try:
        write(text) if as_json else show(render_replays(answer))
    finally:
        wanted.write(answer, recording, text)


def tell(answer: Replay, wanted: ReplayFiles, recording: Recording | None, *, as_json: bool) -> int:
    """Say what became of one scenario on stdout, then in files, also where stdout is gone; return the exit code."""
    from specdebug.report.document import replay_document, to_json
    from specdebug.report.terminal import render_replay

    text = to_json(replay_document(answer))
    try:
        write(text) if as_json else show(render_replay(answer))
    finally:
        wanted.write(answer, recording, lambda: text + "\n")
    return answer.exit_code
