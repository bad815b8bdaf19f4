"""``specdebug minimise``: the smallest scenario that still fails in the same way."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug import __version__
from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError, did_you_mean
from specdebug.base.trial import trial_seed
from specdebug.campaign.trials.campaign import Campaign
from specdebug.campaign.trials.journal import not_engine_code
from specdebug.campaign.trials.state import digest_of
from specdebug.cli import options as opt
from specdebug.cli.output import UNDECIDED, check_writable, on_stderr, tell, tell_rerun

if TYPE_CHECKING:
    from specdebug.campaign.shrink import ScenarioSpace, ShrunkSource
    from specdebug.patching.toggles import Toggle
    from specdebug.report.minimise import Minimisation
    from specdebug.scenario.grammar import Scenario
    from specdebug.search.minimise import Summary


class MinimiseCommand(opt.JournalOptions, opt.PageOptions, opt.EngineOptions, opt.ContentOptions):
    """Write the smallest scenario that still fails in the same way, however seldom it fails.

    Requests are dropped, then prompts, outputs and engine options are made smaller. What is kept was taken away by
    itself until it was certain that the failure needs it. The file that is written fails every time it is replayed.

    Every trial is kept in a journal: the same command goes on where it was stopped. Exit code 0 when nothing more can
    be taken away, 125 when that is not known yet (what there is is written all the same), or when nothing failed.
    """

    example = "minimise flaky_kv_indices --revert 27338 -o small.yaml"
    scenario: str = opt.file_argument(metavar="SCENARIO")
    output: Path = opt.option("Write the small scenario into this file.", "--output", "-o", default=..., metavar="FILE")
    arm: str | None = opt.arm_option(
        "Start from this arm, which fails; unless given, the first that the scenario expects to fail."
    )
    revert: list[str] | None = opt.revert_option("Revert these fixes as well as the arm's own.")
    signature: str | None = opt.signature_option(
        "Keep failures whose signature fits this pattern; the most frequent unless given."
    )
    confidence: str = opt.confidence_option("Keep what is needed at this probability (0.95, 95%).", default="95%")
    max_trials: int = opt.option("Stop after so many trials, and write what there is.", default=1000, min=1)
    jobs: int = opt.trials_at_a_time(default=1)
    seed: int = opt.option("Draw the trials' seeds from this seed.", default=0, min=0)

    def run(self) -> int:
        from specdebug.report.minimise import Minimisation, minimise_report

        level = opt.confidence_of(self.confidence)
        check_writable(self.output)
        self.check_outputs()
        name, space, source, toggles, what = self._plan()
        identity = digest_of("minimise", source.question, str(self.seed), self.signature or "", str(level))
        path = self.journal_path("minimise", identity)
        told = Minimisation(what, len(space.start.workload), str(self.output), str(path), level, toggles)
        with contextlib.closing(source), interrupts.held():
            summary, told = self._search(space, source, told, identity)
        tell_rerun(source.rerun)
        codes = {"done": 0, "interrupted": interrupts.exit_code()}
        code = summary.trouble.exit_code if summary.trouble else codes.get(summary.reason, UNDECIDED)
        small = (self.output if summary.seeds else None, lambda: file_text(summary, told, name))
        return tell(minimise_report(summary, told, code), self, small, trouble=summary.trouble)

    def _plan(self) -> tuple[str, ScenarioSpace, ShrunkSource, Sequence[Toggle], str]:
        """The scenario's name, what can be made smaller of it, the source of its trials, the fixes that they
        revert, and the words for it."""
        from specdebug.campaign.shrink import ScenarioSpace, ShrunkSource

        library, over = self.library(), self.overrides()
        whole = library.scenario(self.scenario).laid_over(over)
        arm = self._arm_of(whole)
        own = whole.arms[arm].revert
        toggles = library.toggles((*own, *opt.numbers_of(self.revert)), whole.target_of(arm))
        space = ScenarioSpace(whole, arm, tuple(toggle.pr for toggle in toggles))
        added = [str(toggle.pr) for toggle in toggles if not set(toggle.numbers) & set(own)]
        reverts = ("--revert", ",".join(added)) if added else ()
        what = shlex.join([self.scenario, "--arm", arm, *reverts, *opt.engine_words(over)])
        source = ShrunkSource(space, library.packs(space.start.probes), toggles, self.jobs)
        return whole.name, space, source, toggles, what

    def _arm_of(self, scenario: Scenario) -> str:
        if self.arm is not None and self.arm not in scenario.arms:
            raise SpecDebugError(f"{scenario.path}: no arm '{self.arm}'{did_you_mean(self.arm, scenario.arms)}")
        expected = {name: scenario.expectation_of(name) for name in scenario.arms}
        failing = [name for name, one in expected.items() if one is not None and one.verdict == "fail"]
        return self.arm or next(iter(failing), None) or next(iter(scenario.arms))

    def _search(
        self, space: ScenarioSpace, source: ShrunkSource, told: Minimisation, identity: str
    ) -> tuple[Summary[Scenario], Minimisation]:
        """Search to the end, or as far as it goes. Return that, and what is told of it."""
        from specdebug.report.minimise import MinimiseProgress
        from specdebug.search.minimise import Minimiser

        about = f"minimising {told.what}, seed {self.seed}"
        with (
            self.opened(Path(told.journal), identity, about, source.state()) as journal,
            on_stderr(MinimiseProgress) as watcher,
        ):
            search = Minimiser(
                space,
                Campaign(source, journal, self.seed, self.max_trials),
                source.leave,
                seeds=lambda number: trial_seed(self.seed, number),
                max_trials=self.max_trials,
                confidence=told.confidence,
                pattern=self.signature,
            )
            summary = search.run(watcher)
            return summary, replace(told, not_engine_code=not_engine_code(journal.evidence))


def file_text(summary: Summary[Scenario], subject: Minimisation, name: str) -> str:
    """The small scenario, what is known of it above."""
    from specdebug.campaign.shrink import scenario_text
    from specdebug.report.minimise import headline, needed_lines, rate_text

    followed = summary.followed or "*"
    whole, left = rate_text(*summary.whole), rate_text(*summary.left)
    header = (
        f"The smallest part of {name} found to fail with {followed}.",
        "",
        f"Made by specdebug {__version__}: specdebug minimise {subject.what} -o {shlex.quote(subject.output)}",
        f"{headline(replace(summary, resumed=0), subject)}.",  # the file is the same however often it was stopped
        f"The whole {whole}; this {left} with fresh seeds, with the one below every time.",
        *needed_lines(summary, subject),
        "",
        f"Look at: the signature {followed}. Seeds that fail: {', '.join(map(str, summary.seeds[:8]))}",
    )
    return scenario_text(summary.smallest, f"{name}-minimal", summary.seeds[0], followed, header)
