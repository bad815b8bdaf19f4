"""``specdebug minimise``: the smallest scenario that still fails in the same way."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError, did_you_mean
from specdebug.cli.options import (
    MAX_TRIALS,
    TRIALS_AT_A_TIME,
    ArmOption,
    Confidence,
    ContentOptions,
    EngineOptions,
    Help,
    JsonOptions,
    Reverts,
    ScenarioFile,
    SignatureOption,
    TrialSeed,
    engine_words,
    grouped,
    numbers_of,
)
from specdebug.cli.output import check_writable, on_stderr, tell
from specdebug.cli.running import UNDECIDED, JournalOptions, confidence_of, tell_rerun

if TYPE_CHECKING:
    from specdebug.campaign.shrink import ScenarioSpace, ShrunkSource
    from specdebug.report.minimise import Minimisation
    from specdebug.scenario.grammar import Scenario
    from specdebug.scenario.library import Library
    from specdebug.search.minimise import Summary


@dataclass(frozen=True)
class MinimiseSubject:
    """The scenario to make smaller, where the small one goes, and the failure to keep."""

    scenario: ScenarioFile
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where the small scenario goes.")]
    arm: Annotated[ArmOption, Help("The arm that fails; the first that is expected to unless given.")] = None
    revert: Reverts = None
    signature: Annotated[SignatureOption, Help("Keep these failures, not the most frequent.")] = None


@dataclass(frozen=True)
class MinimiseBudget:
    """The confidence that what is kept is needed, and the trials there may be, at all and at a time."""

    confidence: Annotated[Confidence, Help("What is kept is needed at this probability (0.95, 95%).")] = "95%"
    max_trials: Annotated[int, MAX_TRIALS, Help("Write what there is after so many.")] = 1000
    jobs: Annotated[int, TRIALS_AT_A_TIME] = 1
    seed: TrialSeed = 0


@dataclass(frozen=True)
class _Plan:
    """The scenario to make smaller by its name, the source of its trials, and the words for it."""

    name: str
    space: ScenarioSpace
    source: ShrunkSource
    what: str


@grouped
def minimise(
    subject: MinimiseSubject,
    budget: MinimiseBudget,
    kept_in: JournalOptions,
    results: JsonOptions,
    engine: EngineOptions,
    shared: ContentOptions,
) -> int:
    """Write the smallest scenario that still fails in the same way, however seldom it fails.

    Requests are dropped, then prompts, outputs and engine options are made smaller. What is kept was taken away by
    itself until it was certain that the failure needs it. The file that is written fails every time it is replayed.

    Every trial is kept in a journal: the same command goes on where it was stopped. Exit code 0 when nothing more can
    be taken away, 125 when that is not known yet (what there is is written all the same), or when nothing failed.
    """
    level = confidence_of(budget.confidence)
    check_writable(subject.output)
    results.check()
    plan = _plan(shared.library(), subject, engine.overrides(), budget.jobs)

    from specdebug.campaign.trials.state import digest_of
    from specdebug.report.minimise import Minimisation

    identity = digest_of("minimise", plan.source.question, str(budget.seed), subject.signature or "", str(level))
    path = kept_in.path("minimise", identity)
    told = Minimisation(plan.what, len(plan.space.start.workload), str(subject.output), str(path), level)
    with contextlib.closing(plan.source), interrupts.held():
        summary, told = _search(plan, told, identity, subject, budget, kept_in)
    tell_rerun(plan.source.rerun)
    return _tell(summary, told, plan.name, results)


def _plan(library: Library, subject: MinimiseSubject, over: Mapping[str, str | int | float], jobs: int) -> _Plan:
    from specdebug.campaign.shrink import ScenarioSpace, ShrunkSource

    whole = library.scenario(subject.scenario).laid_over(over)
    arm = _arm_of(whole, subject.arm)
    own = whole.arms[arm].revert
    toggles = library.toggles((*own, *numbers_of(subject.revert)), whole.target_of(arm))
    space = ScenarioSpace(whole, arm, tuple(toggle.pr for toggle in toggles))
    added = [str(toggle.pr) for toggle in toggles if not set(toggle.numbers) & set(own)]
    reverts = ("--revert", ",".join(added)) if added else ()
    what = shlex.join([subject.scenario, "--arm", arm, *reverts, *engine_words(over)])
    return _Plan(whole.name, space, ShrunkSource(space, library.packs(space.start.probes), toggles, jobs), what)


def _arm_of(scenario: Scenario, named: str | None) -> str:
    if named is not None and named not in scenario.arms:
        raise SpecDebugError(f"{scenario.path}: no arm '{named}'{did_you_mean(named, scenario.arms)}")
    expected = {name: scenario.expectation_of(name) for name in scenario.arms}
    failing = [name for name, one in expected.items() if one is not None and one.verdict == "fail"]
    return named or next(iter(failing), None) or next(iter(scenario.arms))


def _search(
    plan: _Plan,
    told: Minimisation,
    identity: str,
    subject: MinimiseSubject,
    budget: MinimiseBudget,
    kept_in: JournalOptions,
) -> tuple[Summary[Scenario], Minimisation]:
    """Search to the end, or as far as it goes. Return that, and what is told of it."""
    from specdebug.base.trial import trial_seed
    from specdebug.campaign.trials.campaign import Campaign
    from specdebug.campaign.trials.journal import not_engine_code
    from specdebug.report.minimise import MinimiseProgress
    from specdebug.search.minimise import Minimiser

    about = f"minimising {plan.what}, seed {budget.seed}"
    with (
        kept_in.opened(Path(told.journal), identity, about, plan.source.state()) as journal,
        on_stderr(MinimiseProgress) as watcher,
    ):
        search = Minimiser(
            plan.space,
            Campaign(plan.source, journal, budget.seed, budget.max_trials),
            plan.source.leave,
            seeds=lambda number: trial_seed(budget.seed, number),
            max_trials=budget.max_trials,
            confidence=told.confidence,
            pattern=subject.signature,
        )
        summary = search.run(watcher)
        return summary, replace(told, not_engine_code=not_engine_code(journal.evidence))


def _file_text(summary: Summary[Scenario], subject: Minimisation, name: str) -> str:
    from specdebug import __version__
    from specdebug.campaign.shrink import scenario_text
    from specdebug.report.minimise import headline, needed_lines, rate_text

    followed = summary.followed or "*"
    header: Sequence[str] = (
        f"The smallest part of {name} found to fail with {followed}.",
        "",
        f"Made by specdebug {__version__}: specdebug minimise {subject.what} -o {shlex.quote(subject.output)}",
        f"{headline(replace(summary, resumed=0), subject)}.",  # the file is the same however often it was stopped
        f"The whole {rate_text(*summary.whole)}; this {rate_text(*summary.left)} with fresh seeds, with the one below"
        " every time.",
        *needed_lines(summary, subject),
        "",
        f"Look at: the signature {followed}. Seeds that fail: {', '.join(map(str, summary.seeds[:8]))}",
    )
    return scenario_text(summary.smallest, f"{name}-minimal", summary.seeds[0], followed, header)


def _tell(summary: Summary[Scenario], subject: Minimisation, name: str, results: JsonOptions) -> int:
    """Tell the summary, write the small scenario if one fails, and return the exit code."""
    from specdebug.report.minimise import minimise_report

    report = minimise_report(summary, subject, _exit_code(summary))
    small = (Path(subject.output) if summary.seeds else None, lambda: _file_text(summary, subject, name))
    return tell(report, results, small, trouble=summary.trouble)


def _exit_code(summary: Summary[Scenario]) -> int:
    if summary.trouble is not None:
        return summary.trouble.exit_code
    return {"done": 0, "interrupted": interrupts.exit_code()}.get(summary.reason, UNDECIDED)
