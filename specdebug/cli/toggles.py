"""``specdebug toggles``: list, show, verify and check the fixes that can be reverted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.cli import complete
from specdebug.cli.options import (
    Content,
    Debug,
    InDtype,
    Jobs,
    Json,
    JsonOptions,
    NoLocate,
    OnDevice,
    OnTarget,
    WithBackend,
    engine_overrides,
    grouped,
    open_library,
)
from specdebug.cli.output import answer, note, tell
from specdebug.cli.running import progress, workers

if TYPE_CHECKING:
    from specdebug.campaign.loops.verify import LatentCheck, Matrix
    from specdebug.patching.toggles import Toggle
    from specdebug.scenario.library import Library
    from specdebug.targets.settings import TargetChoice

app = typer.Typer(help="List, show, verify and check the fixes that can be reverted.", no_args_is_help=False)

Number = Annotated[str, typer.Argument(metavar="PR", help="A pull request number.", autocompletion=complete.all_fixes)]


@app.command("check")
def check(
    against: Annotated[
        Path, typer.Option("--against", metavar="DIST", help="A wheel (.whl), an sdist (.tar.gz) or a source tree.")
    ],
    version: Annotated[
        str | None, typer.Option("--version", help="Of a source tree that does not state its own.")
    ] = None,
    as_json: Json = False,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Match every fix's patches against a release of another engine, and that engine's own reverts with them.

    Nothing of the release is imported. Exit code 1 when a patch of ours is stale, 125 when none is for this release;
    what is stale in the engine's own registry is reported only.
    """
    from specdebug.patching.drift import check as check_release
    from specdebug.patching.drift import open_dist
    from specdebug.patching.drift.check import engines
    from specdebug.report.toggles import drift_report

    registry = open_library(content).registry
    report = check_release(open_dist(against, engines(registry), version), registry)
    return answer(as_json, drift_report(report))


@app.command("list")
def list_toggles(as_json: Json = False, content: Content = None, debug: Debug = False) -> int:
    """Every registered fix, and what detects it when it is reverted."""
    from specdebug.report.toggles import toggle_list

    return answer(as_json, toggle_list(open_library(content).registry.all))


@app.command("show")
def show_toggle(number: Number, as_json: Json = False, content: Content = None, debug: Debug = False) -> int:
    """One fix: what it mends, what reverting it changes, and what should notice."""
    from specdebug.report.toggles import toggle_shown

    return answer(as_json, toggle_shown(open_library(content).registry.find(number)))


@app.command("verify")
@grouped
@interrupts.held()
def verify(
    *,
    numbers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PR]...", help="All, unless given.", autocompletion=complete.fixes),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds to try, from each scenario's own.")] = 1,
    device: OnDevice = None,
    dtype: InDtype = None,
    backend: WithBackend = None,
    target: OnTarget = None,
    jobs: Jobs = 0,
    no_locate: NoLocate = False,
    results: JsonOptions,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Run every fix's scenario with the fix applied (must be silent) and reverted (must fail as stated).

    Every edit of a fix must have run: where one did not, the scenario's other arms are run with the fix reverted, too.
    Exit code 1 when one is rotten, 125 when this machine cannot run one; it says which and why. With --backend, a fix
    whose lines (or whose probe) lie in another plan keeps its scenario's own, and the table says so.
    """
    over = engine_overrides(device, dtype, backend)
    results.check()
    library = open_library(content)
    chosen, on, latent = _chosen(library, numbers or [], target)
    from specdebug.campaign.loops.verify import Matrix
    from specdebug.report.toggles import matrix_report

    empty = not chosen and latent  # a registry without toggles is another matter
    matrix = Matrix((), False) if empty else _matrix(library, chosen, seeds, over, on, jobs, locate=not no_locate)
    return tell(matrix_report(matrix, latent), results)


def _matrix(
    library: Library,
    chosen: Sequence[Toggle],
    seeds: int,
    over: Mapping[str, Any],
    on: TargetChoice | None,
    jobs: int,
    *,
    locate: bool,
) -> Matrix:
    """Run the matrix of some fixes."""
    with workers(jobs) as pool:
        from specdebug.campaign.loops.verify import verify as run_matrix
        from specdebug.diverge.locate import Locator

        with progress() as watcher:
            located = Locator(pool, library, watcher).located if locate else list
            return run_matrix(pool, library, chosen, seeds, watcher, over, located, on)


def _chosen(
    library: Library, numbers: Sequence[str], named: str | None
) -> tuple[tuple[Toggle, ...], TargetChoice | None, Sequence[LatentCheck]]:
    """The fixes of these numbers, else all, with the edits of the engine that a target runs and what shows them there,
    the target, and those that are latent there. Raises SpecDebugError where nothing shows one that is named."""
    from specdebug.base.abilities import DEFAULT
    from specdebug.campaign.loops.verify import check_latent
    from specdebug.targets.installs.store import find_installed, store_folder
    from specdebug.targets.settings import ReleasedEngine, engine_of, parse_target

    on = None if named is None else parse_target(named)
    target = DEFAULT if on is None else on
    known = library.registry.listed(",".join(numbers), engine_of(target)) if numbers else library.all_toggles(target)
    if not isinstance(on, ReleasedEngine):
        return tuple(known), on, ()
    here = find_installed(store_folder(None if on.store is None else Path(on.store)), on.named)
    found = {toggle.pr: toggle.of_release(here.engine, here.version) for toggle in known}
    latent = check_latent(here, known)
    guarded = {check.toggle.pr for check in latent}
    lacking = [str(pr) for pr, toggle in found.items() if toggle is None and pr not in guarded]
    if lacking:
        said = f"no scenario is known to show {', '.join(lacking)} in {here.release}"
        if numbers:
            raise SpecDebugError(said)
        note(said)
    return tuple(toggle for toggle in found.values() if toggle is not None), on, latent
