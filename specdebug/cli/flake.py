"""``specdebug flake``: how often it fails, and whether a claim about that holds."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.command import Takes
from specdebug.cli.options import (
    MAX_TRIALS,
    TRIALS_AT_A_TIME,
    ArmOption,
    Confidence,
    ContentOptions,
    EngineOptions,
    Help,
    ResultOptions,
    Reverts,
    ScenarioOrCommand,
    SignatureOption,
    TakesOption,
    TrialSeed,
    TrialTimeout,
    engine_words,
    grouped,
    numbers_of,
    positive,
)
from specdebug.cli.output import on_stderr, tell
from specdebug.cli.running import UNDECIDED, JournalOptions, command_of, confidence_of, tell_rerun

if TYPE_CHECKING:
    from specdebug.campaign.trials.command import CommandSource
    from specdebug.campaign.trials.sampling import Sampled
    from specdebug.campaign.trials.scenario import ScenarioSource
    from specdebug.report.flake import Question
    from specdebug.scenario.library import Library
    from specdebug.search.claims import Claim

TRIALS = 1000
"""The most trials, unless the command line sets it, or a claim needs more than a quarter of them when nothing fails."""


@dataclass(frozen=True)
class FlakeSubject:
    """The thing that may fail. Without a scenario it is the command after ``--``."""

    scenario: ScenarioOrCommand = None
    arm: Annotated[ArmOption, Help("Of the scenario; the first that reverts nothing unless given.")] = None
    revert: Annotated[Reverts, Help("Revert these fixes in every trial.")] = None
    takes: TakesOption = Takes.ONE


@dataclass(frozen=True)
class Measurement:
    """The question about it, the confidence of the answer, and the trials there may be."""

    claim: Annotated[
        str | None,
        typer.Option("--claim", metavar="CLAIM", help="Decide this: 'rate<1%', or 'rate<5% or rate>20%'."),
    ] = None
    confidence: Annotated[Confidence, Help("Of what is said (0.95, 95%).")] = "95%"
    max_trials: Annotated[
        int | None, MAX_TRIALS, Help("Stop after so many; 1000, or 4 times what the claim needs.")
    ] = None
    jobs: Annotated[int, TRIALS_AT_A_TIME] = 1
    seed: TrialSeed = 0
    timeout: TrialTimeout = None
    signature: Annotated[SignatureOption, Help("Count these failures only, not any.")] = None


@grouped
def flake(
    ctx: typer.Context,
    subject: FlakeSubject,
    measured: Measurement,
    kept_in: JournalOptions,
    results: ResultOptions,
    engine: EngineOptions,
    shared: ContentOptions,
) -> int:
    """Run one thing with fresh seeds until its failure rate is known, or a claim about it is decided.

    -- CMD ... is any command: the fix to revert reaches it in SGLANG_DEBUG_REVERT_PR (with --takes set, several), the
    trial's seed in SPECDEBUG_TRIAL_SEED; it passes with 0, cannot be tested with 125, and fails with anything else.

    What is stated holds whenever one stops. Every trial is kept in a journal: the same command goes on where it was
    stopped. Exit code 0 when the claim holds (without one: when nothing failed), 1 when it is refuted (when something
    failed), 125 when that is undecided, or nothing shows that the lines of a reverted fix ran.
    """
    from specdebug.search.claims import parse_claim

    level = confidence_of(measured.confidence)
    claim = None if measured.claim is None else parse_claim(measured.claim, level)
    positive(measured.timeout)
    results.check()
    over = engine.overrides_of(ctx, subject.scenario)
    plan = _plan(command_of(ctx, subject.scenario), subject, measured, shared, over)
    with contextlib.closing(plan.source), interrupts.held():
        return _measure(plan, claim, level, measured, kept_in, results)


def _measure(
    plan: _Plan,
    claim: Claim | None,
    level: float,
    measured: Measurement,
    kept_in: JournalOptions,
    results: ResultOptions,
) -> int:
    """Run trials until the rate is known, or as far as it goes, tell it, and return the exit code."""
    from specdebug.campaign.trials.campaign import Campaign
    from specdebug.campaign.trials.sampling import RateSampling
    from specdebug.campaign.trials.state import digest_of
    from specdebug.report.flake import FlakeProgress, Question, flake_report

    identity = digest_of("flake", plan.source.question, ",".join(plan.reverted), str(measured.seed))
    path = kept_in.path("flake", identity)
    about = f"the failure rate of {plan.what}, seed {measured.seed}"
    question = Question(
        plan.what, claim, level, str(path), plan.reproduce, plan.bisect, plan.switched, command=plan.is_command
    )
    with kept_in.opened(path, identity, about, plan.source.state()) as journal:
        most = measured.max_trials or max(TRIALS, 4 * claim.owed(0, 0) if claim else 0)
        reverted = frozenset(plan.reverted)
        sampling = RateSampling(_enough(claim, level), reverted=reverted, max_trials=most, pattern=measured.signature)
        with on_stderr(lambda stream: FlakeProgress(stream, question)) as watcher:
            sampled = Campaign(plan.source, journal, measured.seed, most).search(sampling, watcher)
        tell_rerun(plan.source.rerun)
        trials, evidence = journal.trials, journal.evidence
        code = _exit_code(sampled, question, evidence)
        report = flake_report(sampled, question, code, plan.reverted, trials, evidence, measured.signature)
        return tell(report, results, trouble=sampled.trouble)


def _enough(claim: Claim | None, confidence: float) -> Callable[[int, int], bool]:
    """Return the test, of failures and runs, that the claim is decided, or without one that the rate is known."""
    from specdebug.search.intervals import anytime_interval, narrow_enough

    def enough(failures: int, runs: int) -> bool:
        if claim is not None:
            return claim.decided(failures, runs) is not None
        return bool(narrow_enough(anytime_interval(failures, runs, confidence).width, failures, runs))

    return enough


@dataclass(frozen=True)
class _Plan:
    """The source that runs the trials, the fixes reverted in them, and the words for them."""

    source: CommandSource | ScenarioSource
    reverted: list[str]
    what: str
    reproduce: Callable[[int], str]
    bisect: str
    own: Sequence[str] = ()
    is_command: bool = False

    @property
    def switched(self) -> list[str]:
        """Every fix that is reverted in a trial, those of the arm itself included."""
        return [*self.own, *self.reverted]


def _plan(
    command: Sequence[str],
    subject: FlakeSubject,
    measured: Measurement,
    shared: ContentOptions,
    engine: Mapping[str, str | int | float],
) -> _Plan:
    if command and subject.arm is not None:
        raise SpecDebugError("--arm is for a scenario; a command has none")
    from specdebug.patching.toggles import OWN_ENGINE

    library = shared.library()
    numbers = numbers_of(subject.revert)
    if subject.scenario is None:
        toggles = library.toggles(numbers)
        subject.takes.check(toggles, (OWN_ENGINE,))
        return _plan_of_command(command, library, [str(toggle.pr) for toggle in toggles], subject.takes, measured)
    from specdebug.campaign.trials.scenario import ScenarioSource
    from specdebug.targets.settings import engine_of

    laid_over = library.scenario(subject.scenario).laid_over(engine)
    source = ScenarioSource(library, laid_over, arm=subject.arm, jobs=measured.jobs, timeout_s=measured.timeout)
    target = laid_over.target_of(source.arm)
    toggles = library.toggles(numbers, target)
    if not source.proven:
        subject.takes.check(toggles, (engine_of(target),))
    reverted = [str(toggle.pr) for toggle in toggles]
    others = {candidate.id for candidate in source.candidates}
    reverted = [one for one in reverted if one in others]  # the arm reverts the rest itself
    words = [subject.scenario, "--arm", source.arm, *(("--revert", ",".join(reverted)) if reverted else ())]
    what = shlex.join([*words, *engine_words(engine), *shared.words()])
    known = reverted or source.own_reverts
    smaller = f"specdebug minimise {what} -o small.yaml   # the least that fails so"
    bisect = smaller if known else f"specdebug bisect {what}   # what makes it fail"
    return _Plan(
        source, reverted, what, lambda one: f"specdebug replay {what} --seed {one}", bisect, source.own_reverts
    )


def _plan_of_command(
    command: Sequence[str], library: Library, reverted: list[str], takes: Takes, measured: Measurement
) -> _Plan:
    from specdebug.campaign.trials.command import SEED_VARIABLE, CommandSource
    from specdebug.patching.toggles import REVERT_VARIABLE

    what = shlex.join(command)
    if reverted:
        what = f"{REVERT_VARIABLE}={','.join(reverted)} {what}"
    bisect = f"specdebug bisect -- {shlex.join(command)}   # what makes it fail"
    source = CommandSource(command, library.registry, takes=takes, capacity=measured.jobs, timeout_s=measured.timeout)
    return _Plan(source, reverted, what, lambda one: f"{SEED_VARIABLE}={one} {what}", bisect, is_command=True)


def _exit_code(sampled: Sampled, question: Question, evidence: Mapping[str, str]) -> int:
    from specdebug.report.flake import decision, unproven

    if sampled.trouble is not None:
        return sampled.trouble.exit_code
    if sampled.reason == "interrupted":
        return interrupts.exit_code()
    if unproven(sampled, question, evidence):
        return UNDECIDED
    if question.claim is not None:
        return {True: 0, False: 1, None: UNDECIDED}[decision(sampled, question.claim)]
    if sampled.tally.failures:
        return 1
    return 0 if sampled.tally.runs else UNDECIDED
