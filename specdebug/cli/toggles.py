"""``specdebug toggles``: the fixes that can be reverted, and whether each is still worth its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specdebug import interrupts
from specdebug.cli import complete, toggles_check
from specdebug.cli.options import (
    Content,
    Debug,
    InDtype,
    Jobs,
    Json,
    JsonFile,
    OnDevice,
    WithBackend,
    engine_overrides,
)
from specdebug.cli.output import show, write
from specdebug.cli.replay import open_library, progress, workers
from specdebug.cli.results import check_files, write_files

if TYPE_CHECKING:
    from pathlib import Path

    from specdebug.loops.verify import Matrix

app = typer.Typer(help="List, show, verify and check the fixes that can be reverted.", no_args_is_help=False)
app.command("check")(toggles_check.check)

Number = Annotated[str, typer.Argument(metavar="PR", help="A pull request number.", autocompletion=complete.all_fixes)]


@app.command("list")
def list_toggles(as_json: Json = False, content: Content = None, debug: Debug = False) -> int:
    """Every registered fix, and what detects it when it is reverted."""
    from specdebug.report.toggle import toggle_document

    toggles = open_library(content).registry.all
    if as_json:
        from specdebug.report.document import to_json

        write(to_json([toggle_document(toggle) for toggle in toggles]))
        return 0
    from specdebug.report.toggle import toggle_table

    show(toggle_table(toggles))
    return 0


@app.command("show")
def show_toggle(number: Number, as_json: Json = False, content: Content = None, debug: Debug = False) -> int:
    """One fix: what it mends, what reverting it changes, and what should notice."""
    from specdebug.report.toggle import describe_toggle, toggle_document

    toggle = open_library(content).registry.find(number)
    if as_json:
        from specdebug.report.document import to_json

        write(to_json(toggle_document(toggle)))
    else:
        show(describe_toggle(toggle))
    return 0


@app.command("verify")
@interrupts.held()
def verify(
    numbers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PR]...", help="All, unless given.", autocompletion=complete.fixes),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds to try, from each scenario's own.")] = 1,
    device: OnDevice = None,
    dtype: InDtype = None,
    backend: WithBackend = None,
    jobs: Jobs = 0,
    as_json: Json = False,
    json_file: JsonFile = None,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Run every fix's scenario with the fix applied (must be silent) and reverted (must fail as stated).

    Exit code 1 when one is rotten, 125 when this machine cannot run one; it says which and why. With --backend, a fix
    whose lines (or whose probe) lie in another plan keeps its scenario's own, and the table says so.
    """
    over = engine_overrides(device, dtype, backend)
    check_files(json_file)
    with workers(jobs) as pool:
        from specdebug.loops.verify import verify as run_matrix

        library = open_library(content)
        chosen = library.registry.select(",".join(numbers)) if numbers else library.all_toggles()
        with progress() as watcher:
            matrix = run_matrix(pool, library, chosen, seeds, watcher, over)
    _tell(matrix, json_file, as_json=as_json)
    return matrix.exit_code


def _tell(matrix: Matrix, json_file: Path | None, *, as_json: bool) -> None:
    """Say what each fix came to on stdout, and in a file."""
    from specdebug.report.document import to_json
    from specdebug.report.matrix import render_matrix

    document = to_json([check.to_dict() for check in matrix.checks])
    try:
        write(document) if as_json else show(render_matrix(matrix.checks))
    finally:
        write_files((json_file, lambda: document + "\n"))
