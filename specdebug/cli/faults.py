"""``specdebug faults``: list and show the faults that can be injected, and verify that they are caught."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from specdebug.base import interrupts
from specdebug.cli import complete
from specdebug.cli.options import (
    Debug,
    InDtype,
    Jobs,
    Json,
    OnDevice,
    OnTarget,
    PageOptions,
    engine_overrides,
    grouped,
    open_library,
)
from specdebug.cli.output import answer, on_stderr, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdebug.campaign.loops.fault_matrix import Ground
    from specdebug.cli.options import Dtype

app = typer.Typer(help="List and show the faults that can be injected, and verify what catches them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A fault's name.", autocompletion=complete.fault_names)]

Classes = Annotated[
    list[str] | None,
    typer.Option("--class", metavar="NAME", help="This class only (repeatable).", autocompletion=complete.fault_names),
]
Workers = Annotated[
    list[str] | None,
    typer.Option(
        "--worker",
        metavar="NAME",
        help="This worker of the engine only (repeatable), by its name in the table.",
        autocompletion=complete.worker_names,
    ),
]


@app.command("list")
def list_faults(as_json: Json = False, debug: Debug = False) -> int:
    """Every class of faults, what it does, and what an engine needs for it.

    With CUDA graphs: no is for a class that is refused there, for a graph's replay calls nothing on the host; of the
    others, where they can act if not everywhere.
    """
    from specdebug.faults.catalogue import CLASSES
    from specdebug.report.faults import fault_list

    return answer(as_json, fault_list(CLASSES.values()))


@app.command("show")
def show_fault(name: Name, as_json: Json = False, debug: Debug = False) -> int:
    """One class: what it does, where it can act, how to address it, and a scenario it acts in."""
    from specdebug.faults.declare import find_class
    from specdebug.report.faults import fault_shown

    return answer(as_json, fault_shown(find_class(name)))


@app.command("verify")
@grouped
def verify(
    *,
    name: Classes = None,
    worker: Workers = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many, from 0.")] = 1,
    device: OnDevice = None,
    dtype: InDtype = None,
    target: OnTarget = None,
    jobs: Jobs = 0,
    results: PageOptions,
    debug: Debug = False,
) -> int:
    """Inject every class in a small scenario of every worker, and say what caught it, how soon, and what alone.

    Exit code 1 when damage was done that nothing saw, when something was seen where nothing was done, or when a class
    was not injected; 125 when this machine lacks the device. After a Ctrl-C the matrix is of what had been measured. On
    a GPU, classes act at sites outside the captured graphs; those that have none are left out, and named. So are those
    that have no meaning in the engine of --target.
    """
    from specdebug.campaign.loops.fault_matrix import verify as run_matrix
    from specdebug.faults.catalogue import CLASSES
    from specdebug.faults.declare import find_class
    from specdebug.report.faults import FaultsProgress, faults_report

    kinds = [find_class(each) for each in dict.fromkeys(name)] if name else list(CLASSES.values())
    results.check()
    ground = _ground(device, dtype, target, worker or ())
    began = time.monotonic()
    with interrupts.held():
        with on_stderr(FaultsProgress) as watcher:
            matrix = run_matrix(kinds, seeds, jobs, open_library(None), watcher, ground)
        if matrix.made or matrix.trouble is None:
            tell(faults_report(matrix, time.monotonic() - began), results, trouble=matrix.trouble)
    if matrix.trouble is not None:
        raise matrix.trouble
    return matrix.exit_code


def _ground(device: str | None, dtype: Dtype | None, target: str | None, workers: Sequence[str]) -> Ground:
    """The engine to inject into, and its workers. Raises BadFault for a worker that there is not."""
    from specdebug.base.abilities import DEFAULT
    from specdebug.base.errors import did_you_mean, one_line
    from specdebug.campaign.loops.fault_matrix import Ground
    from specdebug.engine.workers.registry import LINEUP
    from specdebug.faults.model import BadFault
    from specdebug.targets.settings import parse_target

    over = engine_overrides(device, dtype, None)
    on = DEFAULT if target is None else parse_target(target)
    for name in workers:
        if name not in LINEUP:
            raise BadFault(f"--worker: no worker '{one_line(name, 60)}'{did_you_mean(name, LINEUP)}")
    if workers and on != DEFAULT:
        raise BadFault(f"--worker is for our own engine's; {on} has one")
    chosen = tuple(entry for name, entry in LINEUP.items() if name in workers or not workers)
    return Ground(str(over.get("device", "cpu")), on, str(over["dtype"]) if "dtype" in over else None, chosen)
