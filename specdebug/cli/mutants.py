"""``specdebug mutants``: which small faults in the engine's code the shipped scenarios' verdicts see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.cli import complete
from specdebug.cli.options import (
    TRIALS_AT_A_TIME,
    ContentOptions,
    Executor,
    ExecutorOption,
    Help,
    PageOptions,
    RayAddress,
    check_cluster,
    grouped,
)
from specdebug.cli.output import answer, on_stderr, tell
from specdebug.cli.running import UNDECIDED, JournalOptions, tell_rerun

if TYPE_CHECKING:
    from specdebug.apps.mutants.find import Mutant
    from specdebug.apps.mutants.measure import Measured, Spread
    from specdebug.campaign.loops.replay import ArmRun


@dataclass(frozen=True)
class Drawing:
    """The mutants to run, and the scenarios to run them in."""

    scenarios: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCENARIO",
            help="Only in these scenarios, not in every shipped one.",
            autocompletion=complete.scenarios,
            show_default=False,
        ),
    ] = None
    sample: Annotated[int, typer.Option("--sample", min=0, help="Draw so many mutants; 0: all of them.")] = 40
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the draw.")] = 0
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file", metavar="GLOB", help="Only of these files of the engine, as 'speculative/*.py' (repeatable)."
        ),
    ] = None
    jobs: Annotated[
        int | None, TRIALS_AT_A_TIME, Help("Mutants at a time: 2, of a cluster as many as it has CPUs.")
    ] = None
    executor: ExecutorOption = Executor.LOCAL
    ray_address: RayAddress = None
    min_score: Annotated[
        float | None,
        typer.Option("--min-score", metavar="PERCENT", min=0, max=100, help="With a lower score the exit code is 1."),
    ] = None
    listed: Annotated[bool, typer.Option("--list", help="List the mutants that there are, and run none.")] = False


@grouped
def mutants(drawing: Drawing, kept_in: JournalOptions, results: PageOptions, shared: ContentOptions) -> int:
    """Change the engine's code in one place at a time, and count the changes that some scenario's verdict sees.

    A mutant is effective if a tensor, a token or a book differs from the sound engine's in some arm that is to pass,
    or the engine fails; it is caught if that arm's verdict is fail. Every mutant that was run is kept in a journal: the
    same command goes on where it was stopped. Exit code 0 when it was measured, whatever survived; 1 when the score is
    below --min-score or the engine as it is does not pass, 125 when nothing could be measured.
    """
    from specdebug.apps.mutants.find import all_mutants

    check_cluster(drawing.executor, drawing.ray_address)
    found = all_mutants(*drawing.file or ())
    if drawing.listed:
        from specdebug.report.mutants import mutants_list

        return answer(results.as_json, mutants_list(found))
    results.check()
    with interrupts.held():
        return _measure(found, drawing, kept_in, results, shared)


def _measure(
    found: Sequence[Mutant], drawing: Drawing, kept_in: JournalOptions, results: PageOptions, shared: ContentOptions
) -> int:
    from specdebug.apps.mutants.measure import MutantSearch, identity_of
    from specdebug.campaign.trials.state import own_packages
    from specdebug.report.mutants import MutantQuestion, MutantsProgress, mutants_report

    arms = _arms(drawing, shared)
    identity = identity_of(arms, drawing.sample, drawing.seed, drawing.file or ())
    path = kept_in.path("mutants", identity)
    about = f"mutants of the engine, {drawing.sample or 'all'} of them, seed {drawing.seed}"
    with kept_in.opened(path, identity, about, own_packages()) as journal:
        jobs, spread = drawing.jobs or 2, _spread(drawing)
        measurement = MutantSearch(arms, found, drawing.sample, drawing.seed, jobs, spread)
        with on_stderr(MutantsProgress) as watcher:
            measured = measurement.run(journal, watcher)
        tell_rerun(measured.rerun)
    asked = MutantQuestion(drawing.sample, drawing.seed, str(path))
    report = mutants_report(measured, asked, _exit_code(measured, drawing.min_score))
    return tell(report, results, trouble=measured.trouble)


def _spread(drawing: Drawing) -> Spread | None:
    """Return what puts mutants on a Ray cluster; None if they are to run here."""
    if drawing.executor is not Executor.RAY:
        return None
    from specdebug.campaign.trials.ray_executor import RaySource

    return partial(RaySource, address=drawing.ray_address, jobs=drawing.jobs)


def _arms(drawing: Drawing, shared: ContentOptions) -> list[ArmRun]:
    from specdebug.apps.mutants.sound import sound_arms

    library = shared.library()
    scenarios = library.gather(drawing.scenarios) if drawing.scenarios else library.scenarios()
    arms = sound_arms(library, scenarios)
    if not arms:
        raise SpecDebugError("mutants needs an arm that is to pass, on the CPU; none of these scenarios has one")
    return arms


def _exit_code(measured: Measured, least: float | None) -> int:
    if measured.trouble is not None:
        return measured.trouble.exit_code
    if measured.reason == "interrupted":
        return interrupts.exit_code()
    rate = measured.total.rate
    if rate is None:
        return UNDECIDED
    return 1 if least is not None and 100 * rate < least else 0
