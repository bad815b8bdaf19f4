"""``specdebug bisect``: name what makes a flaky failure appear."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdebug import interrupts
from specdebug.cli import complete
from specdebug.cli.bisect_plan import Over, Plan, over_commits, over_faults, over_scenario, over_toggles_of_command
from specdebug.cli.options import (
    Content,
    Debug,
    Html,
    InDtype,
    Json,
    JsonFile,
    OnDevice,
    WithBackend,
    WithPageSize,
    command_line,
    engine_of_scenario,
)
from specdebug.cli.output import write
from specdebug.cli.results import check_files, tell_github, tell_work, write_files
from specdebug.cli.trials import command_of, confidence_of, own_folder, tell_kept, tell_rerun
from specdebug.errors import SpecDebugError

if TYPE_CHECKING:
    from specdebug.report.bisect import Subject
    from specdebug.trials.journal import Journal
    from specdebug.trials.search import Findings, Watcher

UNDECIDED = 125


class Executor(StrEnum):
    """Where trials run."""

    LOCAL = "local"
    RAY = "ray"


def bisect(
    ctx: typer.Context,
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO",
            help="A scenario; or end with -- CMD ... to run a command.",
            autocompletion=complete.scenarios,
        ),
    ] = None,
    over: Annotated[Over, typer.Option("--over", help="What may be the cause.")] = Over.TOGGLES,
    confidence: Annotated[
        str, typer.Option("--confidence", metavar="P", help="Name a culprit at this probability (0.95, 95%).")
    ] = "95%",
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Trials at a time: of a command 1, of a scenario a core each."),
    ] = None,
    executor: Annotated[
        Executor, typer.Option("--executor", help="Run trials here, or on a Ray cluster, as many as it has CPUs.")
    ] = Executor.LOCAL,
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray-address", metavar="HOST:PORT", help="Of the cluster, or auto; RAY_ADDRESS, else this machine alone."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the trials' seeds, and of ties.")] = 0,
    max_trials: Annotated[int, typer.Option("--max-trials", min=1, help="Stop undecided after so many.")] = 1000,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="A trial that takes longer has failed: hang.")
    ] = None,
    arm: Annotated[
        str | None,
        typer.Option(
            "--arm",
            help="Of the scenario; the first that reverts nothing, over faults that declares some.",
            autocompletion=complete.arms,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="Over config: an engine option to suspect (repeatable)."),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="NAME[:key=value,...]",
            help="Over faults: one to suspect beside those that the arm declares (repeatable).",
            autocompletion=complete.faults,
        ),
    ] = None,
    good: Annotated[
        str | None, typer.Option("--good", metavar="REV", help="Over commits: where it does not fail.")
    ] = None,
    bad: Annotated[str | None, typer.Option("--bad", metavar="REV", help="Over commits: where it does; HEAD.")] = None,
    repo: Annotated[
        Path | None, typer.Option("--repo", metavar="DIR", help="Over commits: the repository; this folder's.")
    ] = None,
    build: Annotated[
        str | None, typer.Option("--build", metavar="CMD", help="Over commits: run in a shell after each checkout.")
    ] = None,
    signature: Annotated[
        str | None,
        typer.Option(
            "--signature",
            metavar="GLOB",
            help="Follow these failures; else what the scenario expects, or the most frequent.",
            autocompletion=complete.signatures,
        ),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal", metavar="FILE", help="Where trials are kept; .specdebug/bisect-*.sqlite unless given."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; the journal is kept as FILE.bak, in place of any there.")
    ] = False,
    as_json: Json = False,
    json_file: JsonFile = None,
    html: Html = None,
    device: OnDevice = None,
    dtype: InDtype = None,
    backend: WithBackend = None,
    page_size: WithPageSize = None,
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
    level = confidence_of(confidence)
    if timeout is not None and not timeout > 0:
        raise SpecDebugError(f"--timeout must be above 0 seconds, got {timeout:g}")
    check_files(json_file, html)
    command = _command(ctx, scenario)
    unwanted: dict[str, object] = {}
    if over is not Over.COMMITS:
        unwanted |= {"--good": good, "--bad": bad, "--repo": repo, "--build": build}
    if over is not Over.CONFIG:
        unwanted |= {"--option": option}
    if over is not Over.FAULTS:
        unwanted |= {"--fault": fault}
    for name, value in unwanted.items():
        if value is not None:
            raise SpecDebugError(f"{name} is of no use with --over {over.value}")
    if arm is not None and scenario is None:
        raise SpecDebugError("--arm is for scenarios")
    if ray_address is not None and executor is not Executor.RAY:
        raise SpecDebugError("--ray-address is of no use without --executor ray")
    if over is Over.COMMITS and executor is Executor.RAY:
        raise SpecDebugError("--over commits runs where its worktrees are, on this machine; leave out --executor ray")
    engine = engine_of_scenario(ctx, scenario, device, dtype, backend, page_size)
    if over is Over.COMMITS:
        plan = over_commits(command, scenario, repo, good, bad, build, level, jobs=jobs or 1, timeout=timeout)
    elif scenario is not None and over is Over.FAULTS:
        plan = over_faults(scenario, content, engine, arm, fault, level, seed, jobs=jobs, timeout=timeout)
    elif scenario is not None:
        plan = over_scenario(scenario, content, engine, arm, option, over, level, seed, jobs=jobs, timeout=timeout)
    elif over is Over.FAULTS:
        raise SpecDebugError("--over faults needs a scenario: nothing can be injected into a command")
    elif over is Over.CONFIG:
        raise SpecDebugError("--over config needs a scenario: a command has no engine options to set")
    else:
        plan = over_toggles_of_command(command, content, level, seed, jobs=jobs or 1, timeout=timeout)
    if executor is Executor.RAY:
        plan = plan.on_ray(ray_address, jobs)
    with contextlib.closing(plan.source), interrupts.held():
        from specdebug.trials.command import digest_of
        from specdebug.trials.journal import Journal
        from specdebug.trials.search import Search

        identity = digest_of(over.value, plan.source.identity, str(seed))
        path = journal or own_folder() / f"bisect-{identity}.sqlite"
        subject = plan.subject(over.value, str(path))
        with Journal(path, identity, f"{plan.what} over {over.value}, seed {seed}", fresh=fresh) as kept:
            tell_kept(kept)
            search = Search(
                plan.source,
                kept,
                plan.chooser,
                opening=plan.opening,
                seed=seed,
                max_trials=max_trials,
                pattern=signature or plan.signature,
            )
            with _watcher(subject) as watcher:
                findings = search.run(watcher)
            tell_rerun(plan.source.rerun)
            tell_work(
                findings.trouble,
                lambda: _publish(findings, subject, kept, as_json),
                lambda: _pass_on(findings, subject, kept, plan, signature, json_file, html),
            )
    return _exit_code(findings)


def _command(ctx: typer.Context, scenario: str | None) -> tuple[str, ...]:
    """What follows ``--``; empty where there is a scenario instead."""
    command = command_of(ctx)
    if scenario is not None and command:
        raise SpecDebugError("bisect takes a scenario or, after --, a command; not both")
    if scenario is None and not command:
        raise SpecDebugError("bisect needs a scenario or, after --, a command, as in: specdebug bisect -- ./test.sh")
    return command


def _publish(findings: Findings, subject: Subject, journal: Journal, as_json: bool) -> None:
    """Report on stdout; a JSON document there takes its place."""
    from specdebug.report.bisect import findings_text

    if as_json:
        write(_document(findings, subject, journal))
    else:
        write(findings_text(findings, subject, journal.evidence))


def _document(findings: Findings, subject: Subject, journal: Journal) -> str:
    from specdebug.report.bisect import bisect_document
    from specdebug.report.document import to_json

    return to_json(bisect_document(findings, subject, _exit_code(findings), journal.evidence))


def _pass_on(
    findings: Findings,
    subject: Subject,
    journal: Journal,
    plan: Plan,
    signature: str | None,
    document: Path | None,
    html: Path | None,
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
            signature or plan.signature,
            command_line(),
        )

    def summary() -> str:
        from specdebug.report.bisect import findings_text
        from specdebug.report.github import text_summary

        text = findings_text(findings, subject, journal.evidence)
        return text_summary(f"bisect {subject.what.rstrip(',')}", _exit_code(findings), text)

    try:
        write_files((document, plain), (html, page))
    finally:
        tell_github(summary)


def _exit_code(findings: Findings) -> int:
    if findings.trouble is not None:
        return findings.trouble.exit_code
    return {"answered": 0, "interrupted": interrupts.exit_code()}.get(findings.reason, UNDECIDED)


@contextmanager
def _watcher(subject: Subject) -> Iterator[Watcher]:
    """Progress on stderr, if there is one."""
    from specdebug.report.bisect import bisect_progress

    with contextlib.ExitStack() as stack:
        stream = sys.stderr or stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        watcher = bisect_progress(stream, subject)
        with watcher:
            yield watcher
