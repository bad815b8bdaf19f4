"""``specdebug hunt``."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdebug import interrupts
from specdebug.cli.options import (
    ContentOptions,
    JsonOptions,
    OnTarget,
    Reverts,
    numbers_of,
    positive,
)
from specdebug.cli.output import note, show
from specdebug.cli.params import Help, grouped
from specdebug.cli.replay import progress, workers
from specdebug.cli.results import tell_results
from specdebug.verdict.outcome import EXIT_CODES

if TYPE_CHECKING:
    from specdebug.hunt.hunting import Hunt
    from specdebug.report.hunt import HuntAnswer


@dataclass(frozen=True)
class HuntSearch:
    """The engine, the scenarios to draw, and the folder that remembers them."""

    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Remembers the hunt; has its findings.")]
    target: OnTarget = None
    count: Annotated[int, typer.Option("--count", min=1, help="Scenarios to draw, those of before included.")] = 200
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draw other scenarios.")] = 0
    revert: Annotated[Reverts, Help("Take these fixes out of the engine, to see what a hunt makes of it.")] = None
    max_time: Annotated[
        float | None, typer.Option("--max-time", metavar="SECONDS", help="Begin no scenario after so long.")
    ] = None
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Scenarios at a time, each with its server.")] = 1
    small: Annotated[
        int, typer.Option("--small", metavar="TRIALS", min=0, help="Trials to make each new failure small; 0: none.")
    ] = 24


@grouped
@interrupts.held()
def hunt(search: HuntSearch, results: JsonOptions, shared: ContentOptions) -> int:
    """Draw scenarios for an engine, judge each with every oracle, and make small what fails.

    Page sizes, trees, steps, chunks, cache hits, aborts, retraction, graph sizes, memory pressure, stops and sampling
    are drawn from the seed. The same command goes on where it was stopped; a larger --count goes further.

    Exit code 0 when nothing failed, 1 when something did, 125 when nothing could be judged.
    """
    from specdebug.hunt.hunting import Hunt
    from specdebug.hunt.record import HuntRecord
    from specdebug.report.hunt import HuntAnswer, hunt_document, hunt_page, render_hunt
    from specdebug.scenario.servers import parse_target
    from specdebug.targets.registry import find_target

    results.check()
    until = float("inf") if positive(search.max_time) is None else time.monotonic() + float(search.max_time or 0)
    target, reverts = parse_target(search.target or "embedded"), numbers_of(search.revert)
    find_target(target)
    record = HuntRecord(search.output, {"target": str(target), "seed": search.seed, "reverts": list(reverts)})
    small: dict[str, Path] = {}
    with workers(search.jobs) as pool, progress() as watcher:
        hunting = Hunt(pool, shared.library(), record, target, search.seed, reverts, watcher, search.jobs)
        interrupted = hunting.run(range(search.count), until)
    answer = HuntAnswer(record, str(target), search.seed, _words(search), small, reverts, interrupted)
    if not interrupted:
        _make_small(hunting, search, small)
    code = _exit_code(answer)
    tell_results(
        results,
        lambda: hunt_document(answer, code),
        lambda: show(render_hunt(answer)),
        (search.output / "report.md", lambda: hunt_page(answer)),
    )
    return code


def _make_small(hunting: Hunt, search: HuntSearch, small: dict[str, Path]) -> None:
    """Make the first scenario of each failure small, unless that was done before."""
    from specdebug.hunt.shrinking import shrink, shrunk_path

    for signature, ones in hunting.record.findings.items():
        path = shrunk_path(hunting, ones[0])
        if search.small and not path.exists():
            note(f"making scenario {ones[0].number} small: {signature}")
            shrink(hunting, ones[0], search.small)
        if path.exists():
            small[signature] = path


def _words(search: HuntSearch) -> str:
    """The command that goes on with the hunt."""
    words = ["specdebug", "hunt", "-o", str(search.output), "--count", str(search.count), "--seed", str(search.seed)]
    words += ["--target", search.target] if search.target else []
    return shlex.join([*words, *(["--revert", ",".join(search.revert)] if search.revert else [])])


def _exit_code(answer: HuntAnswer) -> int:
    record = answer.record
    if answer.interrupted:
        return interrupts.exit_code()
    if record.findings:
        return EXIT_CODES["fail"]
    return EXIT_CODES["pass"] if record.count("pass") else EXIT_CODES["unknown"]
