"""``specdebug bundle``."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.base import interrupts
from specdebug.base.errors import CannotRunHere
from specdebug.cli import options as opt
from specdebug.cli.output import progress, show_report, tell, workers

if TYPE_CHECKING:
    from specdebug.bundle.content import Traced
    from specdebug.campaign.loops.replay import ArmRun
    from specdebug.report.parts import Report
    from specdebug.scenario.library import Library


class BundleCommand(opt.EngineOptions, opt.JsonOptions, opt.ContentOptions):
    """Run an arm and write all that it takes to run it elsewhere into one file, for `specdebug replay`.

    Exit code 0 when the bundle is written, whatever the arm's verdict; that is printed, and is what replaying gives.
    """

    held = True
    file: str = opt.file_argument()
    output: Path = opt.option("Where to write it.", "--output", "-o", default=..., metavar="FILE.specdebug")
    arm: str | None = opt.arm_option("Of the scenario; its first unless given.")
    revert: list[str] | None = opt.revert_option("Revert these fixes as well as the arm's own.")
    fault: list[str] | None = opt.fault_option("Inject this fault as well (repeatable).")
    force: bool = opt.option("Overwrite a file that is there.", default=False)
    seed: int | None = opt.seed_option()
    timeout: float | None = opt.option("For each arm, not the scenario's.", metavar="SECONDS")

    def run(self) -> int:
        from specdebug.bundle.archive import check_target

        check_target(self.output, self.force)
        self.check_outputs()
        began = time.monotonic()
        with workers(1) as pool:
            from specdebug.bundle.content import run_traced
            from specdebug.campaign.loops import replay as replaying
            from specdebug.faults.declare import parse_fault
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
        from specdebug.report.parts import Line

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
