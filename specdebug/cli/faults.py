"""``specdebug faults``: the kinds of damage that can be done to an engine on purpose."""

from __future__ import annotations

from typing import Annotated

import typer

from specdebug.cli.options import Debug, Jobs, Json
from specdebug.cli.output import show, write

app = typer.Typer(help="List and show the faults that can be injected, and verify what catches them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A fault's name.")]


@app.command("list")
def list_faults(as_json: Json = False, debug: Debug = False) -> int:
    """Every class of faults, what it does, and what an engine needs for it."""
    from specdebug.faults.catalogue import CLASSES

    if as_json:
        from specdebug.report.document import to_json

        write(to_json([kind.to_dict() for kind in CLASSES.values()]))
        return 0
    from specdebug.report.tables import plain_table

    rows = [(kind.name, kind.family, kind.effect, ", ".join(kind.needs), kind.summary) for kind in CLASSES.values()]
    show(plain_table(("fault", "family", "effect", "needs", "what it does"), rows))
    return 0


@app.command("show")
def show_fault(name: Name, as_json: Json = False, debug: Debug = False) -> int:
    """One class: what it does, where it can act, how to address it, and a scenario it acts in."""
    from specdebug.faults.declare import find_class

    kind = find_class(name)
    if as_json:
        from specdebug.report.document import to_json

        write(to_json(kind.to_dict()))
    else:
        from specdebug.report.fault import describe_fault

        write(describe_fault(kind))
    return 0


@app.command("verify")
def verify(
    name: Annotated[
        list[str] | None, typer.Option("--class", metavar="NAME", help="This class only (repeatable).")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many, from 0.")] = 1,
    jobs: Jobs = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Inject every class in a small scenario, seed by seed, and say what caught it, how soon, and what alone.

    Exit code 1 when damage was done that nothing saw, when something was seen where nothing was done, or when a class
    was not injected.
    """
    from specdebug.cli.replay import open_library
    from specdebug.faults.catalogue import CLASSES
    from specdebug.faults.declare import find_class
    from specdebug.harness.fault_matrix import verify as run_matrix

    kinds = [find_class(each) for each in dict.fromkeys(name)] if name else list(CLASSES.values())
    matrix = run_matrix(kinds, seeds, jobs, open_library(None))
    if as_json:
        from specdebug.report.document import to_json

        write(to_json(matrix.to_dict()))
    else:
        from specdebug.report.fault_matrix import render_fault_matrix

        show(render_fault_matrix(matrix))
    return matrix.exit_code
