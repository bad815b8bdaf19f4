"""The scenarios of ``specdebug replay``: one with the reports of a single replay, or several with one summary."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from specdebug.base.errors import SpecDebugError
from specdebug.cli.options import BaselineOptions, ReplayResults, command_line
from specdebug.cli.output import OutputError, check_writable, note, show
from specdebug.cli.results import tell_replay, tell_results
from specdebug.cli.trials import FOLDER, own_folder

if TYPE_CHECKING:
    from specdebug.campaign.loops.replay import Choices, PlannedRuns, Progress
    from specdebug.campaign.loops.replays import Replays
    from specdebug.campaign.loops.steplog import Recording
    from specdebug.scenario.library import Library
    from specdebug.workers.pool import WorkerPool


def check_several(results: ReplayResults) -> None:
    """Raise SpecDebugError if these results of several scenarios could not be written; --html names a folder."""
    for option in ("perfetto", "report"):
        if getattr(results, option):
            raise SpecDebugError(f"--{option} is of one scenario; name a single file")
    pages = results.html
    if pages is not None and pages.exists() and not pages.is_dir():
        raise OutputError(f"{pages} is a file; of several scenarios --html names a folder")
    for path in (results.junit, results.json_file, pages):
        if path is not None and not (path is pages and path.is_dir()):
            check_writable(path)


def plan_named(
    library: Library, named: Sequence[str], choices: Choices, keyword: str | None, *, last_failed: bool
) -> list[PlannedRuns]:
    """Return the runs of the scenarios that were named, and say on stderr which of them ``--lf`` selects."""
    from specdebug.campaign.loops.last_failed import LastFailed
    from specdebug.campaign.loops.replays import only_failed, plan_all
    from specdebug.campaign.loops.selection import parse_expression

    record = LastFailed.read(FOLDER) if last_failed else LastFailed()
    if not named and not record.files:
        raise SpecDebugError("--lf: no failure is recorded in this folder; name a FILE to run")
    expression = None if keyword is None else parse_expression(keyword)
    plans = plan_all(library.gather(named or record.files), choices, library, expression)
    if last_failed:
        plans, said = only_failed(plans, record)
        note(f"--lf: {said}")
    return plans


def run_plans(
    pool: WorkerPool,
    library: Library,
    plans: Sequence[PlannedRuns],
    watching: AbstractContextManager[Progress],
    results: ReplayResults,
    baselines: BaselineOptions,
    *,
    several: bool,
    locate: bool,
) -> int:
    """Run the plans, locate failures, record which arms failed, tell the results, save a baseline; the exit code."""
    from specdebug.campaign.loops.last_failed import keep_failed
    from specdebug.campaign.loops.replays import replay_all

    recording, baseline = results.recording(), baselines.open()
    with watching as watcher:
        answer = replay_all(pool, library, plans, watcher, recording, baseline)
        if locate and not answer.interrupted:
            answer = located(pool, library, answer, watcher)
    ended = [result for replay in answer.replays for result in replay.results]
    whole = [result for result in ended if not result.outcome.interrupted]
    if trouble := keep_failed(FOLDER, whole, own_folder):
        note(f"--lf: {trouble}")
    if answer.trouble is not None and not (several and ended):
        raise answer.trouble
    try:
        if several:
            _tell_several(answer, results, recording)
        else:
            tell_replay(answer.replays[0], results, recording)
    finally:  # also where stdout is gone
        baselines.save(ended)
    if answer.trouble is not None:
        raise answer.trouble
    return answer.exit_code


def located(pool: WorkerPool, library: Library, answer: Replays, progress: Progress) -> Replays:
    """Return the answer with the places where failures began."""
    if not any(result.to_locate for replay in answer.replays for result in replay.results):
        return answer  # importing what follows takes seconds
    from specdebug.diverge.locate import Locator

    locator = Locator(pool, library, progress)
    replays = locator.in_replays(answer.replays)
    return replace(answer, replays=replays, interrupted=answer.interrupted or locator.interrupted)


def _tell_several(answer: Replays, results: ReplayResults, recording: Recording | None) -> None:
    from specdebug.campaign.loops.replays import labels_of
    from specdebug.report.github import replay_annotations
    from specdebug.report.junit import junit_xml
    from specdebug.report.replays import render_replays, replays_document, replays_summary

    pages = []
    if results.html is not None and recording is not None:
        from specdebug.report.html.replay import replay_page

        with contextlib.suppress(OSError):  # writing the pages will say so
            results.html.mkdir(exist_ok=True)
        labels = labels_of([replay.scenario for replay in answer.replays])
        for label, replay in zip(labels, answer.replays, strict=True):
            path = results.html / f"{label.strip(os.sep).replace(os.sep, '-')}.html"
            pages.append((path, lambda one=replay: replay_page(one, recording, command_line())))
    tell_results(
        results,
        lambda: replays_document(answer),
        lambda: show(render_replays(answer)),
        (results.junit, lambda: junit_xml(answer.replays)),
        *pages,
        summary=lambda: replays_summary(answer),
        annotations=lambda: [each for replay in answer.replays for each in replay_annotations(replay)],
    )
