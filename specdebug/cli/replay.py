"""``specdebug replay``: one scenario, several with one summary, or a bundle; ``specdebug bundle``, which makes one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.base import interrupts
from specdebug.base.errors import CannotRunHere, SpecDebugError
from specdebug.bundle import ENDING
from specdebug.cli import complete
from specdebug.cli import options as opt
from specdebug.cli.mined import FromCheckout
from specdebug.cli.output import (
    FOLDER,
    OutputError,
    check_writable,
    command_line,
    note,
    own_folder,
    progress,
    show_report,
    tell,
    workers,
)
from specdebug.faults.declare import parse_fault
from specdebug.patching.hook import REVERT_VARIABLE
from specdebug.report.parts import Line

if TYPE_CHECKING:
    from specdebug.bundle.content import Traced
    from specdebug.campaign.loops.replay import ArmRun, Choices, PlannedRuns, Progress
    from specdebug.campaign.loops.replays import Replays
    from specdebug.campaign.loops.steplog import Recording
    from specdebug.report.parts import Report
    from specdebug.scenario.library import Library
    from specdebug.workers.pool import WorkerPool


class Mode(StrEnum):
    """The reaction of a probe that finds something: it ends the run, or writes it down."""

    ASSERT = "assert"
    RECORD = "record"


class ArmChoices(opt.Command):
    """The choice of arms to run, and the changes made to them."""

    arm: list[str] | None = opt.arm_option("Run this arm only (repeatable); the exit code is its plain verdict.")
    revert: list[str] | None = opt.revert_option(
        "Revert these fixes as well, in the named arm or the first; exit code: its verdict."
    )
    fault: list[str] | None = opt.fault_option(
        "Inject this fault as well (repeatable), in the named arm or the first; exit code: its verdict."
    )
    keyword: str | None = opt.option(
        "Run only arms whose name, or scenario's name, fits this expression, as in 'cache and not zero'.",
        "-k",
        metavar="EXPR",
    )
    last_failed: bool = opt.option(
        "Run only the arms that failed in this folder when they last ran; all if none did.",
        "--lf",
        "--last-failed",
        default=False,
    )
    seed: int | None = opt.seed_option()
    mode: Mode | None = opt.option("Set the mode of every probe, over what the packs say.")
    probes: list[str] | None = opt.packs_option(
        "Switch on the probes of these packs instead of the scenario's (repeatable)."
    )


class ReplayCommand(
    ArmChoices, opt.EngineOptions, opt.ResultOptions, opt.BaselineOptions, opt.RunOptions, FromCheckout
):
    """Run scenarios' arms, each in a process of its own, and say what broke where.

    Exit code 0 when every arm did what its scenario expects of it, 1 when one did not, 125 when one came to
    no verdict (of several scenarios the worst: 1 before 125 before 0). With --arm, --revert, --fault or
    SGLANG_DEBUG_REVERT_PR: the arm's own verdict, 0 pass, 1 fail, 125 unknown; so, too, for a bundle
    (FILE.specdebug), of which it is said whether it came out as recorded.
    """

    example = "replay scenarios/cache_hit.yaml --revert 19897 --html page.html"
    held = True
    files: list[str] | None = opt.argument(
        "Scenario files, names of shipped ones, folders of scenarios; or one bundle.",
        metavar="FILE...",
        complete=complete.replayed,
    )
    no_locate: bool = opt.no_locate_option()
    html: Path | None = opt.option(
        "Write a self-contained page into this file; of several FILEs, a folder of pages.", metavar="FILE"
    )
    perfetto: Path | None = opt.option("Write the steps into this file, as a Perfetto trace.", metavar="FILE")
    trust: bool = opt.option("Run a bundle's code and commands, and whatever else it asks for.", default=False)

    def run(self) -> int:
        named = list(self.files or ())
        if bundles := [name for name in named if name.endswith(ENDING)]:
            if len(named) > 1:
                raise SpecDebugError(f"{bundles[0]}: a bundle is replayed by itself, as it was recorded")
            return self._replay_bundle(bundles[0])
        if self.trust:
            raise SpecDebugError("--trust is for bundles; a scenario's toggles are yours")
        library = self.library()
        if not named and not self.last_failed:
            raise SpecDebugError(
                "replay needs a FILE: a scenario file, a shipped scenario's name, a folder or a bundle"
            )
        several = len(named) != 1 or library.is_folder(named[0])
        (self._check_several if several else self.check_outputs)()
        with workers(self.jobs) as pool:
            choices = self._choices()
            if self.save_baseline is not None and (choices.reverts or choices.faults):
                raise SpecDebugError("--save-baseline is of sound runs; it does not go with reverts and faults")
            return self._run_plans(pool, library, self._plans(library, named, choices), several=several)

    def _choices(self) -> Choices:
        return replace(
            self.choices(),
            arms=tuple(self.arm or ()),
            reverts=opt.numbers_of(self.revert),
            faults=tuple(parse_fault(text) for text in self.fault or ()),
            seed=self.seed,
            mode=self.mode.value if self.mode is not None else None,
            probes=tuple(self.probes) if self.probes else None,
            timeout_s=opt.positive(self.timeout),
        )

    def _check_several(self) -> None:
        """Raise SpecDebugError if these results of several scenarios could not be written; --html names a folder."""
        for name in ("perfetto", "report"):
            if getattr(self, name):
                raise SpecDebugError(f"--{name} is of one scenario; name a single file")
        pages = self.html
        if pages is not None and pages.exists() and not pages.is_dir():
            raise OutputError(f"{pages} is a file; of several scenarios --html names a folder")
        for path in (self.junit, self.json_file, pages):
            if path is not None and not (path is pages and path.is_dir()):
                check_writable(path)

    def _plans(self, library: Library, named: Sequence[str], choices: Choices) -> list[PlannedRuns]:
        """The runs of the scenarios that were named; say on stderr which of them ``--lf`` selects."""
        from specdebug.campaign.loops.replays import LastFailed, only_failed, parse_expression, plan_all

        record = LastFailed.read(FOLDER) if self.last_failed else LastFailed()
        if not named and not record.files:
            raise SpecDebugError("--lf: no failure is recorded in this folder; name a FILE to run")
        expression = None if self.keyword is None else parse_expression(self.keyword)
        plans = plan_all(library.gather(named or record.files), choices, library, expression)
        if self.last_failed:
            plans, said = only_failed(plans, record)
            note(f"--lf: {said}")
        return plans

    def _run_plans(self, pool: WorkerPool, library: Library, plans: Sequence[PlannedRuns], *, several: bool) -> int:
        """Run the plans, locate failures, record which arms failed, tell the results, and save a baseline."""
        from specdebug.campaign.loops.replays import keep_failed, replay_all
        from specdebug.report.replay import replay_report

        recording, baseline = self.recording(), self.open_baseline()
        with progress() as watcher:
            answer = replay_all(pool, library, plans, progress=watcher, recording=recording, baseline=baseline)
            if not (self.no_locate or answer.interrupted):
                answer = _located(pool, library, answer, watcher)
        ended = [result for replay in answer.replays for result in replay.results]
        whole = [result for result in ended if not result.outcome.interrupted]
        if trouble := keep_failed(FOLDER, whole, own_folder):
            note(f"--lf: {trouble}")
        if answer.trouble is not None and not (several and ended):
            raise answer.trouble
        try:
            if several:
                self._tell_several(answer, recording)
            else:
                tell(replay_report(answer.replays[0], recording), self)
        finally:  # also where stdout is gone
            self.save_to_baseline(ended)
        if answer.trouble is not None:
            raise answer.trouble
        return answer.exit_code

    def _tell_several(self, answer: Replays, recording: Recording | None) -> None:
        from specdebug.campaign.loops.replays import labels_of
        from specdebug.report.formats import render
        from specdebug.report.replay import replays_report

        report, pages, folder = replays_report(answer, recording), [], self.html
        if folder is not None:
            with contextlib.suppress(OSError):  # writing the pages will say so
                folder.mkdir(exist_ok=True)
            labels = labels_of([replay.scenario for replay in answer.replays])
            for label, one in zip(labels, report.inner, strict=True):
                path = folder / f"{label.strip(os.sep).replace(os.sep, '-')}.html"
                pages.append((path, partial(render, "html", replace(one, line=command_line()))))
        self.html = None
        tell(report, self, *pages)

    def _replay_bundle(self, file: str) -> int:
        """Run a bundle again: one that asks for no more than our library has, unless it is trusted."""
        from specdebug.bundle.again import run_again
        from specdebug.bundle.content import read_bundle
        from specdebug.report.replay import replay_report

        library = None if self.trust else self.library()
        self.check_outputs()
        if flag := self.named(ArmChoices, opt.EngineOptions, opt.BaselineOptions):
            raise SpecDebugError(f"{file}: a bundle is replayed as recorded; {flag} does not go with it")
        if os.environ.get(REVERT_VARIABLE):
            raise SpecDebugError(f"{file}: a bundle is replayed as recorded; unset {REVERT_VARIABLE}")
        timeout_s = opt.positive(self.timeout)
        bundle = read_bundle(file, None if library is None else library.all_toggles())
        recording = self.recording()
        with workers(1) as pool, progress() as watcher:
            again = run_again(pool, bundle, timeout_s, watcher, recording)
        return tell(replay_report(again.replay, recording, (again.lines, again.to_dict())), self)


def _located(pool: WorkerPool, library: Library, answer: Replays, progress: Progress) -> Replays:
    """The answer with the places where failures began."""
    if not any(result.to_locate for replay in answer.replays for result in replay.results):
        return answer  # importing what follows takes seconds
    from specdebug.diverge.locate import Locator

    locator = Locator(pool, library, progress)
    replays = locator.in_replays(answer.replays)
    return replace(answer, replays=replays, interrupted=answer.interrupted or locator.interrupted)


class BundleCommand(opt.EngineOptions, opt.JsonOptions, opt.ContentOptions):
    """Run an arm and write all that it takes to run it elsewhere into one file, for `specdebug replay`.

    Exit code 0 when the bundle is written, whatever the arm's verdict; that is printed, and is what replaying gives.
    """

    example = "bundle scenarios/topk_kv_indices.yaml --revert 27338 -o b.specdebug"
    held = True
    file: str = opt.file_argument()
    output: Path = opt.option(
        "Write the bundle into this file.", "--output", "-o", default=..., metavar="FILE.specdebug"
    )
    arm: str | None = opt.arm_option("Run this arm of the scenario; its first unless given.")
    revert: list[str] | None = opt.revert_option("Revert these fixes as well as the arm's own.")
    fault: list[str] | None = opt.fault_option("Inject this fault as well (repeatable).")
    force: bool = opt.option("Overwrite a file that is there.", default=False)
    seed: int | None = opt.seed_option()
    timeout: float | None = opt.option("Give the arm so long, whatever the scenario says.", metavar="SECONDS")

    def run(self) -> int:
        from specdebug.bundle.archive import check_target

        check_target(self.output, self.force)
        self.check_outputs()
        began = time.monotonic()
        with workers(1) as pool:
            from specdebug.bundle.content import run_traced
            from specdebug.campaign.loops import replay as replaying
            from specdebug.report.replay import replay_report

            library = self.library()
            scenario = library.scenario(self.file)
            choices = replace(
                self.choices(),
                arms=(self.arm or next(iter(scenario.arms)),),
                reverts=opt.numbers_of(self.revert),
                faults=tuple(parse_fault(text) for text in self.fault or ()),
                seed=self.seed,
                timeout_s=opt.positive(self.timeout),
            )
            (run,) = replaying.plan(scenario, choices, library)
            with progress() as watcher:
                traced = run_traced(pool, library, run, watcher)
        if traced is None:
            return interrupts.exit_code()
        if traced.result.outcome.unavailable:
            raise CannotRunHere(f"no bundle written: {traced.result.outcome.detail}")
        replayed = replaying.Replay(scenario, (traced.result,), time.monotonic() - began, traced.interrupted)
        report = replay_report(replayed)
        return self.answer(report) if traced.interrupted else self._tell(report, traced, library, run)

    def _tell(self, report: Report, traced: Traced, library: Library, run: ArmRun) -> int:
        from specdebug.bundle.content import versions_here, write_bundle

        requests = library.workload(run.scenario, run.arm, run.seed)
        here = versions_here(traced.result.outcome.stack)
        try:
            if not self.as_json:
                show_report(report)
        finally:  # also where stdout is gone
            write_bundle(self.output, traced, requests, here, report.document, self.force)
            size = self.output.stat().st_size
            said = f"wrote {self.output} ({size / 1024:.0f} KiB); specdebug replay {self.output} runs it again"
            bundled = {**report.document, "bundle": {"path": str(self.output), "bytes": size}}
            tell(replace(report, command="bundle", document=bundled, parts=[Line(said, fold=False)]), self)
        return 0
