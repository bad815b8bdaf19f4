"""``specdebug bisect``: name what makes a flaky failure appear."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import typer

from specdebug.base import interrupts
from specdebug.cli.bisect_options import BisectBudget, BisectSubject, Suspects, check_together
from specdebug.cli.bisect_plan import BisectQuestion, Plan, plan_of
from specdebug.cli.options import (
    ContentOptions,
    EngineOptions,
    Executor,
    PageOptions,
    grouped,
    positive,
)
from specdebug.cli.output import on_stderr, tell
from specdebug.cli.running import UNDECIDED, JournalOptions, command_of, confidence_of, tell_rerun

if TYPE_CHECKING:
    from specdebug.campaign.trials.search import Findings


@grouped
def bisect(
    ctx: typer.Context,
    subject: BisectSubject,
    budget: BisectBudget,
    suspects: Suspects,
    kept_in: JournalOptions,
    results: PageOptions,
    engine: EngineOptions,
    shared: ContentOptions,
) -> int:
    """Name the fix whose revert makes a flaky failure appear, or the pair, option, fault or commit, and how surely.

    SCENARIO is run with fixes reverted, with engine options set (--over config), or with some of its faults injected
    and the others not (--over faults).

    -- CMD ... is any command: the fix to revert reaches it in SGLANG_DEBUG_REVERT_PR (with --takes set, several), the
    trial's seed in SPECDEBUG_TRIAL_SEED; it passes with 0, cannot be tested with 125, and fails with anything else.
    Over commits it runs in a worktree of its own at each commit. Nothing shows that a command ran what it was to
    revert, so that it can convict a fix and acquit none.

    Every trial is kept in a journal: the same command goes on where it was stopped. Exit code 0 when a culprit, or
    that there is none, was named; 125 when it ended undecided, or unproven.
    """
    level = confidence_of(budget.confidence)
    positive(budget.timeout)
    results.check()
    command = command_of(ctx, subject.scenario)
    check_together(subject, budget, suspects)
    over = engine.overrides_of(ctx, subject.scenario)
    plan = plan_of(BisectQuestion(subject, suspects, budget, command, shared, over, level))
    if budget.executor is Executor.RAY:
        plan = plan.on_ray(budget.ray_address, budget.jobs)
    with contextlib.closing(plan.source), interrupts.held():
        return _search(plan, subject.over.value, budget, suspects.signature or plan.signature, kept_in, results)


def _search(
    plan: Plan, over: str, budget: BisectBudget, pattern: str | None, kept_in: JournalOptions, results: PageOptions
) -> int:
    """Search to the end, or as far as it goes, tell the findings, and return the exit code."""
    from specdebug.campaign.trials.campaign import Campaign
    from specdebug.campaign.trials.search import CulpritSearch
    from specdebug.campaign.trials.state import digest_of
    from specdebug.report.bisect import BisectProgress, bisect_report

    identity = digest_of(over, plan.origin.question, str(budget.seed))
    path = kept_in.path("bisect", identity)
    subject = plan.subject(over, str(path))
    with kept_in.opened(path, identity, f"{plan.what} over {over}, seed {budget.seed}", plan.origin.state()) as journal:
        search = CulpritSearch(
            plan.source.candidates,
            plan.chooser,
            opening=plan.opening,
            proven=plan.proven,
            max_trials=budget.max_trials,
            pattern=pattern,
        )
        with on_stderr(lambda stream: BisectProgress(stream, subject)) as watcher:
            findings = Campaign(plan.source, journal, budget.seed, budget.max_trials).search(search, watcher)
        tell_rerun(plan.source.rerun)
        code, kept = _exit_code(findings), (journal.trials, journal.evidence)
        report = bisect_report(findings, subject, code, *kept, plan.chooser, pattern)
        return tell(report, results, trouble=findings.trouble)


def _exit_code(findings: Findings) -> int:
    if findings.trouble is not None:
        return findings.trouble.exit_code
    return {"answered": 0, "interrupted": interrupts.exit_code()}.get(findings.reason, UNDECIDED)
