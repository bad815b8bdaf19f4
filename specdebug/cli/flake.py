"""``specdebug flake``: how often it fails, and whether a claim about that holds."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdebug import interrupts
from specdebug.cli import complete
from specdebug.cli.options import (
    Content,
    Debug,
    Html,
    InDtype,
    Json,
    JsonFile,
    Junit,
    OnDevice,
    WithBackend,
    WithPageSize,
    command_line,
    engine_of_scenario,
    engine_words,
)
from specdebug.cli.output import write
from specdebug.cli.replay import open_library
from specdebug.cli.results import check_files, tell_github, tell_work, write_files
from specdebug.cli.trials import command_of, confidence_of, own_folder, tell_kept, tell_rerun
from specdebug.errors import SpecDebugError

if TYPE_CHECKING:
    from specdebug.report.flake import Question
    from specdebug.trials.journal import Journal
    from specdebug.trials.sampling import Sampled, Watcher
    from specdebug.trials.source import TrialSource

UNDECIDED = 125

MAX_TRIALS = 1000
"""Unless the command line says otherwise, or a claim needs more than a quarter of that when nothing fails."""


def flake(
    ctx: typer.Context,
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCENARIO]",
            help="A scenario; or end with -- CMD ... to run a command.",
            autocompletion=complete.scenarios,
        ),
    ] = None,
    arm: Annotated[
        str | None,
        typer.Option(
            "--arm", help="Of the scenario; the first that reverts nothing unless given.", autocompletion=complete.arms
        ),
    ] = None,
    revert: Annotated[
        list[str] | None,
        typer.Option(
            "--revert",
            metavar="PR[,PR]",
            help="Revert these fixes in every trial.",
            autocompletion=complete.fixes,
        ),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option("--claim", metavar="CLAIM", help="Decide this: 'rate<1%', or 'rate<5% or rate>20%'."),
    ] = None,
    confidence: Annotated[str, typer.Option("--confidence", metavar="P", help="Of what is said (0.95, 95%).")] = "95%",
    max_trials: Annotated[
        int | None,
        typer.Option("--max-trials", min=1, help="Stop after so many; 1000, or 4 times what the claim needs."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Trials at a time.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the trials' seeds.")] = 0,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="A trial that takes longer has failed: hang.")
    ] = None,
    signature: Annotated[
        str | None,
        typer.Option(
            "--signature",
            metavar="GLOB",
            help="Count these failures only, not any.",
            autocompletion=complete.signatures,
        ),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal", metavar="FILE", help="Where trials are kept; .specdebug/flake-*.sqlite unless given."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; the journal is kept as FILE.bak, in place of any there.")
    ] = False,
    as_json: Json = False,
    json_file: JsonFile = None,
    junit: Junit = None,
    html: Html = None,
    device: OnDevice = None,
    dtype: InDtype = None,
    backend: WithBackend = None,
    page_size: WithPageSize = None,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Run one thing with fresh seeds until its failure rate is known, or a claim about it is decided.

    -- CMD ... is any command: the fixes to revert reach it in SGLANG_DEBUG_REVERT_PR, the trial's seed in
    SPECDEBUG_TRIAL_SEED; it passes with 0, cannot be tested with 125, and fails with anything else.

    What is stated holds whenever one stops. Every trial is kept in a journal: the same command goes on where it was
    stopped. Exit code 0 when the claim holds (without one: when nothing failed), 1 when it is refuted (when something
    failed), 125 when that is undecided.
    """
    from specdebug.stats.claims import parse_claim

    level = confidence_of(confidence)
    claimed = None if claim is None else parse_claim(claim, level)
    if timeout is not None and not timeout > 0:
        raise SpecDebugError(f"--timeout must be above 0 seconds, got {timeout:g}")
    check_files(json_file, junit, html)
    engine = engine_of_scenario(ctx, scenario, device, dtype, backend, page_size)
    plan = _plan(command_of(ctx), scenario, arm, revert or (), content, engine, jobs=jobs, timeout=timeout)
    with contextlib.closing(plan.source), interrupts.held():
        from specdebug.report.flake import Question
        from specdebug.stats.intervals import anytime_interval, narrow_enough
        from specdebug.trials.command import digest_of
        from specdebug.trials.journal import Journal
        from specdebug.trials.sampling import Sampling

        def enough(failures: int, runs: int) -> bool:
            if claimed is not None:
                return claimed.decided(failures, runs) is not None
            return bool(narrow_enough(anytime_interval(failures, runs, level).width, failures, runs))

        identity = digest_of("flake", plan.source.identity, ",".join(plan.reverted), str(seed))
        path = journal or own_folder() / f"flake-{identity}.sqlite"
        question = Question(plan.what, claimed, level, str(path), plan.reproduce)
        with Journal(path, identity, f"the failure rate of {plan.what}, seed {seed}", fresh=fresh) as kept:
            tell_kept(kept)
            sampling = Sampling(
                plan.source,
                kept,
                enough,
                reverted=frozenset(plan.reverted),
                seed=seed,
                max_trials=max_trials or max(MAX_TRIALS, 4 * claimed.owed(0, 0) if claimed else 0),
                pattern=signature,
            )
            with _watcher(question) as watcher:
                sampled = sampling.run(watcher)
            tell_rerun(plan.source.rerun)
            tell_work(
                sampled.trouble,
                lambda: _publish(sampled, question, plan.reverted, kept, as_json),
                lambda: _pass_on(sampled, question, plan.reverted, kept, signature, json_file, junit, html),
            )
    return _exit_code(sampled, question)


@dataclass(frozen=True)
class _Plan:
    """Who runs the trials, with what reverted, and how to speak of them."""

    source: TrialSource
    reverted: list[str]
    what: str
    reproduce: Callable[[int], str]


def _plan(
    command: Sequence[str],
    scenario: str | None,
    arm: str | None,
    revert: Sequence[str],
    content: Sequence[Path] | None,
    engine: Mapping[str, str | int],
    *,
    jobs: int,
    timeout: float | None,
) -> _Plan:
    if (scenario is not None) == bool(command):
        trouble = "takes a scenario or, after --, a command; not both"
        hint = "needs a scenario or, after --, a command, as in: specdebug flake -- ./test.sh"
        raise SpecDebugError(f"flake {trouble if command else hint}")
    if command and arm is not None:
        raise SpecDebugError("--arm is for a scenario; a command has none")
    from specdebug.toggles import REVERT_VARIABLE, parse_numbers, reverts_from_environment
    from specdebug.trials.command import SEED_VARIABLE, CommandSource

    library = open_library(content)
    numbers = (*parse_numbers(",".join(revert)), *reverts_from_environment())
    reverted = [str(toggle.pr) for toggle in library.toggles(numbers)]
    if command:
        what = shlex.join(command)
        if reverted:
            what = f"{REVERT_VARIABLE}={','.join(reverted)} {what}"
        source: TrialSource = CommandSource(command, library.registry, capacity=jobs, timeout_s=timeout)
        return _Plan(source, reverted, what, lambda one: f"{SEED_VARIABLE}={one} {what}")
    from specdebug.trials.scenario import ScenarioSource

    assert scenario is not None  # for the type checker: checked above
    laid_over = replace(library.scenario(scenario), overrides=dict(engine))
    warm = ScenarioSource(library, laid_over, arm=arm, jobs=jobs, timeout_s=timeout)
    others = {candidate.id for candidate in warm.candidates}
    reverted = [one for one in reverted if one in others]  # the arm reverts the rest itself
    words = [scenario, "--arm", warm.arm, *(("--revert", ",".join(reverted)) if reverted else ())]
    words += engine_words(engine)
    words += [word for folder in content or () for word in ("--content", str(folder))]
    what = shlex.join(words)
    return _Plan(warm, reverted, what, lambda one: f"specdebug replay {what} --seed {one}")


def _publish(sampled: Sampled, question: Question, reverted: list[str], journal: Journal, as_json: bool) -> None:
    """Report on stdout; a JSON document there takes its place."""
    from specdebug.report.flake import sampled_text

    if as_json:
        write(_document(sampled, question, reverted, journal))
    else:
        write(sampled_text(sampled, question, journal.evidence))


def _document(sampled: Sampled, question: Question, reverted: list[str], journal: Journal) -> str:
    from specdebug.report.document import to_json
    from specdebug.report.flake import flake_document

    return to_json(flake_document(sampled, question, _exit_code(sampled, question), reverted, journal.evidence))


def _pass_on(
    sampled: Sampled,
    question: Question,
    reverted: list[str],
    journal: Journal,
    signature: str | None,
    document: Path | None,
    junit: Path | None,
    html: Path | None,
) -> None:
    """The JSON document, JUnit XML, a page, and a summary on GitHub."""
    from specdebug.report.flake import sampled_text

    code = _exit_code(sampled, question)

    def plain() -> str:
        return _document(sampled, question, reverted, journal) + "\n"

    def page() -> str:
        from specdebug.report.html.flake import flake_page

        trials, evidence = journal.trials, journal.evidence
        return flake_page(sampled, question, code, reverted, trials, evidence, signature, command_line())

    def cases() -> str:
        from specdebug.report.junit import verdict_xml

        seconds = sum(journal.trials[number][1].seconds for number in range(sampled.tally.trials))
        case = question.what if question.claim is None else f"{question.what}: {question.claim.text}"
        return verdict_xml("flake", case, code, sampled_text(sampled, question, journal.evidence), seconds)

    def summary() -> str:
        from specdebug.report.github import text_summary

        return text_summary(f"flake {question.what}", code, sampled_text(sampled, question, journal.evidence))

    try:
        write_files((document, plain), (junit, cases), (html, page))
    finally:
        tell_github(summary)


def _exit_code(sampled: Sampled, question: Question) -> int:
    from specdebug.report.flake import decision

    if sampled.trouble is not None:
        return sampled.trouble.exit_code
    if sampled.reason == "interrupted":
        return interrupts.exit_code()
    if question.claim is not None:
        return {True: 0, False: 1, None: UNDECIDED}[decision(sampled, question.claim)]
    if sampled.tally.failures:
        return 1
    return 0 if sampled.tally.runs else UNDECIDED


@contextmanager
def _watcher(question: Question) -> Iterator[Watcher]:
    """Progress on stderr, if there is one."""
    from specdebug.report.flake import flake_progress

    with contextlib.ExitStack() as stack:
        stream = sys.stderr or stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        watcher = flake_progress(stream, question)
        with watcher:
            yield watcher
