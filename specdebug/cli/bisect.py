"""``specdebug bisect``: name what makes a flaky failure appear."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from specdebug import interrupts
from specdebug.cli.bisect_options import BisectBudget, BisectSubject, Executor, Followed, Suspects, check_together
from specdebug.cli.bisect_plan import BisectQuestion, Plan, plan_of
from specdebug.cli.options import (
    Content,
    Debug,
    EngineOptions,
    JournalOptions,
    PageOptions,
    command_line,
    positive,
)
from specdebug.cli.output import write
from specdebug.cli.params import grouped
from specdebug.cli.results import check_files, tell_github, tell_work, write_files
from specdebug.cli.trials import command_of, confidence_of, own_folder, tell_kept, tell_rerun
from specdebug.errors import SpecDebugError

if TYPE_CHECKING:
    from specdebug.report.bisect import Bisection
    from specdebug.trials.journal import Journal
    from specdebug.trials.search import Findings, Watcher

UNDECIDED = 125


@grouped
def bisect(
    ctx: typer.Context,
    subject: BisectSubject,
    budget: BisectBudget,
    suspects: Suspects,
    followed: Followed,
    kept_in: JournalOptions,
    results: PageOptions,
    engine: EngineOptions,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Name the fix whose revert makes a flaky failure appear, or the pair, option, fault or commit, and how surely.

    SCENARIO is run with fixes reverted, with engine options set (--over config), or with some of its faults injected
    and the others not (--over faults).

    -- CMD ... is any command: the fixes to revert reach it in SGLANG_DEBUG_REVERT_PR, the trial's seed in
    SPECDEBUG_TRIAL_SEED; it passes with 0, cannot be tested with 125, and fails with anything else. Over commits it
    runs in a worktree of its own at each commit.

    Every trial is kept in a journal: the same command goes on where it was stopped. Exit code 0 when a culprit, or
    that there is none, was named; 125 when it ended undecided.
    """
    level = confidence_of(budget.confidence)
    positive(budget.timeout)
    check_files(results.json_file, results.html)
    command = _command(ctx, subject.scenario)
    check_together(subject, budget, suspects)
    over = engine.overrides_of(ctx, subject.scenario)
    plan = plan_of(BisectQuestion(subject, suspects, budget, command, content, over, level))
    if budget.executor is Executor.RAY:
        plan = plan.on_ray(budget.ray_address, budget.jobs)
    with contextlib.closing(plan.source), interrupts.held():
        findings = _search(plan, subject.over.value, budget, followed.signature, kept_in, results)
    return _exit_code(findings)


def _command(ctx: typer.Context, scenario: str | None) -> tuple[str, ...]:
    """Return what follows ``--``; empty where there is a scenario instead."""
    command = command_of(ctx)
    if scenario is not None and command:
        raise SpecDebugError("bisect takes a scenario or, after --, a command; not both")
    if scenario is None and not command:
        raise SpecDebugError("bisect needs a scenario or, after --, a command, as in: specdebug bisect -- ./test.sh")
    return command


def _search(
    plan: Plan,
    over: str,
    budget: BisectBudget,
    signature: str | None,
    kept_in: JournalOptions,
    results: PageOptions,
) -> Findings:
    """Search to the end, or as far as it goes, and say what was found."""
    from specdebug.trials.command import digest_of
    from specdebug.trials.journal import Journal
    from specdebug.trials.search import Search

    identity = digest_of(over, plan.source.identity, str(budget.seed))
    path = kept_in.journal or own_folder() / f"bisect-{identity}.sqlite"
    subject = plan.subject(over, str(path))
    pattern = signature or plan.signature
    what = f"{plan.what} over {over}, seed {budget.seed}"
    with Journal(path, identity, what, fresh=kept_in.fresh) as kept:
        tell_kept(kept)
        search = Search(
            plan.source,
            kept,
            plan.chooser,
            opening=plan.opening,
            seed=budget.seed,
            max_trials=budget.max_trials,
            pattern=pattern,
        )
        with _watcher(subject) as watcher:
            findings = search.run(watcher)
        tell_rerun(plan.source.rerun)
        tell_work(
            findings.trouble,
            lambda: _publish(findings, subject, kept, as_json=results.as_json),
            lambda: _pass_on(findings, subject, kept, plan, pattern, results),
        )
    return findings


def _publish(findings: Findings, subject: Bisection, journal: Journal, *, as_json: bool) -> None:
    """Report on stdout; a JSON document there takes its place."""
    from specdebug.report.bisect import findings_text

    if as_json:
        write(_document(findings, subject, journal))
    else:
        write(findings_text(findings, subject, journal.evidence))


def _document(findings: Findings, subject: Bisection, journal: Journal) -> str:
    from specdebug.report.bisect import bisect_document
    from specdebug.report.document import to_json

    return to_json(bisect_document(findings, subject, _exit_code(findings), journal.evidence))


def _pass_on(
    findings: Findings,
    subject: Bisection,
    journal: Journal,
    plan: Plan,
    pattern: str | None,
    results: PageOptions,
) -> None:
    """The JSON document, a page, and a summary on GitHub."""

    def plain() -> str:
        return _document(findings, subject, journal) + "\n"

    def page() -> str:
        from specdebug.report.html.bisect import bisect_page

        return bisect_page(
            findings,
            subject,
            _exit_code(findings),
            journal.trials,
            journal.evidence,
            plan.chooser,
            pattern,
            command_line(),
        )

    def summary() -> str:
        from specdebug.report.bisect import findings_text
        from specdebug.report.github import text_summary

        text = findings_text(findings, subject, journal.evidence)
        return text_summary(f"bisect {subject.what.rstrip(',')}", _exit_code(findings), text)

    try:
        write_files((results.json_file, plain), (results.html, page))
    finally:
        tell_github(summary)


def _exit_code(findings: Findings) -> int:
    if findings.trouble is not None:
        return findings.trouble.exit_code
    return {"answered": 0, "interrupted": interrupts.exit_code()}.get(findings.reason, UNDECIDED)


@contextmanager
def _watcher(subject: Bisection) -> Iterator[Watcher]:
    """Progress on stderr, if there is one."""
    from specdebug.report.bisect import bisect_progress

    with contextlib.ExitStack() as stack:
        stream = sys.stderr or stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        watcher = bisect_progress(stream, subject)
        with watcher:
            yield watcher
