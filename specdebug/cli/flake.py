"""``specdebug flake``: how often it fails, and whether a claim about that holds."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.command import Takes
from specdebug.cli import options as opt
from specdebug.cli.output import on_stderr, tell, tell_rerun

if TYPE_CHECKING:
    from specdebug.campaign.trials.command import CommandSource
    from specdebug.campaign.trials.scenario import ScenarioSource
    from specdebug.patching.toggles import Toggle
    from specdebug.search.claims import Claim

TRIALS = 1000
"""The most trials, unless the command line sets it, or a claim needs more than a quarter of them when nothing fails."""


@dataclass(frozen=True)
class _Plan:
    """The source that runs the trials, the fixes reverted in them (``reverted``: beside the arm's own), and the
    words."""

    source: CommandSource | ScenarioSource
    reverted: list[str]
    what: str
    reproduce: Callable[[int], str]
    bisect: str
    toggles: Sequence[Toggle] = ()


class FlakeCommand(opt.TrialOptions, opt.ResultOptions):
    """Run one thing with fresh seeds until its failure rate is known, or a claim about it is decided.

    -- CMD ... is any command: it passes with 0, cannot be tested with 125, and fails with anything else; the trial's
    seed is in SPECDEBUG_TRIAL_SEED. Fixes are reverted in its Python processes, as by `specdebug run`; with --no-proof
    SGLANG_DEBUG_REVERT_PR tells them (one, or with --takes set several).

    What is stated holds whenever one stops. Every trial is kept in a journal: the same command goes on where it was
    stopped. Exit code 0 when the claim holds (without one: when nothing failed), 1 when it is refuted (when something
    failed), 125 when that is undecided, or nothing shows that the lines of a reverted fix ran.
    """

    example = "flake --claim 'rate<1%' -- ./ci-job.sh"
    revert: list[str] | None = opt.revert_option("Revert these fixes in every trial.")
    claim: str | None = opt.option("Decide this: 'rate<1%', or 'rate<5% or rate>20%'.", metavar="CLAIM")
    confidence: str = opt.confidence_option("State the rate at this confidence (0.95, 95%).", default="95%")
    max_trials: int | None = opt.option(
        "Stop after so many trials; unless given, 1000, or 4 times what the claim needs if nothing fails.", min=1
    )
    jobs: int = opt.trials_at_a_time(default=1)
    seed: int = opt.option("Draw the trials' seeds from this seed.", default=0, min=0)
    signature: str | None = opt.signature_option(
        "Count only failures whose signature fits this pattern, not every failure."
    )

    def run(self) -> int:
        from specdebug.search.claims import parse_claim

        level = opt.confidence_of(self.confidence)
        claim = None if self.claim is None else parse_claim(self.claim, level)
        opt.positive(self.timeout)
        self.check_outputs()
        plan = self._plan()
        with contextlib.closing(plan.source), interrupts.held():
            return self._measure(plan, claim, level)

    def _measure(self, plan: _Plan, claim: Claim | None, level: float) -> int:
        """Run trials until the rate is known, or as far as it goes, tell it, and return the exit code."""
        from specdebug.campaign.trials.campaign import Campaign
        from specdebug.campaign.trials.sampling import RateSampling
        from specdebug.campaign.trials.state import digest_of
        from specdebug.report.flake import FlakeProgress, Question, flake_report
        from specdebug.search.intervals import anytime_interval, narrow_enough

        def enough(failures: int, runs: int) -> bool:
            if claim is not None:
                return claim.decided(failures, runs) is not None
            return bool(narrow_enough(anytime_interval(failures, runs, level).width, failures, runs))

        identity = digest_of("flake", plan.source.question, ",".join(plan.reverted), str(self.seed))
        path = self.journal_path("flake", identity)
        about = f"the failure rate of {plan.what}, seed {self.seed}"
        is_command = self.scenario is None
        question = Question(
            plan.what, claim, level, str(path), plan.reproduce, plan.bisect, plan.toggles, command=is_command
        )
        with self.opened(path, identity, about, plan.source.state()) as journal:
            most = self.max_trials or max(TRIALS, 4 * claim.owed(0, 0) if claim else 0)
            reverted = frozenset(plan.reverted)
            sampling = RateSampling(enough, reverted=reverted, max_trials=most, pattern=self.signature)
            with on_stderr(lambda stream: FlakeProgress(stream, question)) as watcher:
                sampled = Campaign(plan.source, journal, self.seed, most).search(sampling, watcher)
            tell_rerun(plan.source.rerun)
            report = flake_report(sampled, question, plan.reverted, journal.trials, journal.evidence, self.signature)
            return tell(report, self, trouble=sampled.trouble)

    def _plan(self) -> _Plan:
        over, command = self.overrides(), self.words()
        if command and self.arm is not None:
            raise SpecDebugError("--arm is for a scenario; a command has none")
        if self.scenario is None:
            return self._plan_of_command(command)
        from specdebug.campaign.trials.scenario import ScenarioSource
        from specdebug.targets.settings import engine_of

        library = self.library()
        laid_over = library.scenario(self.scenario).laid_over(over)
        source = ScenarioSource(library, laid_over, arm=self.arm, jobs=self.jobs, timeout_s=self.timeout)
        target = laid_over.target_of(source.arm)
        toggles = library.toggles(opt.numbers_of(self.revert), target)
        if not source.proven:
            self.takes.check(toggles, (engine_of(target),))
        others = {candidate.id for candidate in source.candidates}
        reverted = [str(toggle.pr) for toggle in toggles if str(toggle.pr) in others]  # the arm reverts the rest itself
        words = [self.scenario, "--arm", source.arm, *(("--revert", ",".join(reverted)) if reverted else ())]
        what = shlex.join([*words, *opt.engine_words(over), *self.content_words()])
        smaller = f"specdebug minimise {what} -o small.yaml   # the least that fails so"
        known = reverted or source.own_reverts
        bisect = smaller if known else f"specdebug bisect {what}   # what makes it fail"
        switched = [library.registry.find(one) for one in (*source.own_reverts, *reverted)]
        return _Plan(source, reverted, what, lambda one: f"specdebug replay {what} --seed {one}", bisect, switched)

    def _plan_of_command(self, command: Sequence[str]) -> _Plan:
        from specdebug.campaign.trials import hooked
        from specdebug.campaign.trials.command import SEED_VARIABLE, CommandSource
        from specdebug.campaign.trials.state import digest_of
        from specdebug.patching.toggles import OWN_ENGINE

        library, numbers = self.library(), opt.numbers_of(self.revert)
        limits: dict[str, Any] = {"capacity": self.jobs, "timeout_s": self.timeout}
        source: CommandSource
        if self.no_proof:
            toggles = library.toggles(numbers)
            self.takes.check(toggles, (OWN_ENGINE,))
            source = CommandSource(command, library.registry.toggles.values(), takes=self.takes, **limits)
        else:
            toggles = tuple(library.registry.find(str(number)) for number in numbers)
            identity = digest_of("flake", hooked.question(command, self.timeout), str(self.seed))
            look = self.looked(command, library.registry, self.journal_path("flake", identity))
            source = hooked.HookedSource(command, library.registry, numbers=numbers, look=look, **limits)
            Takes.SET.check(toggles, (OWN_ENGINE, *look.packages))
        reverted = [str(toggle.pr) for toggle in toggles]
        bisect = shlex.join(["specdebug", "bisect", *self.content_words(), "--", *command]) + "   # what makes it fail"
        what = opt.run_line(command, reverted, None if self.no_proof else self.content_words())
        return _Plan(source, reverted, what, lambda one: f"{SEED_VARIABLE}={one} {what}", bisect, toggles)
