"""``specdebug faults``: list and show the faults that can be injected, and verify that they are caught."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from specdebug.base import interrupts
from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import did_you_mean, one_line
from specdebug.cli import complete
from specdebug.cli import options as opt
from specdebug.cli.output import on_stderr, tell
from specdebug.engine.workers.registry import LINEUP
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.declare import find_class
from specdebug.faults.model import BadFault
from specdebug.scenario.library import Library
from specdebug.targets.settings import parse_target

if TYPE_CHECKING:
    from specdebug.campaign.loops.fault_matrix import Ground


class FaultList(opt.JsonFlag):
    """List every class of faults, what it does, and what an engine needs for it.

    With CUDA graphs: no is for a class that is refused there, for a graph's replay calls nothing on the host; of the
    others, where they can act if not everywhere.
    """

    example = "faults list"

    def run(self) -> int:
        from specdebug.report.faults import fault_list

        return self.answer(fault_list(CLASSES.values()))


class FaultShow(opt.JsonFlag):
    """Show one class: what it does, where it can act, how to address it, and a scenario it acts in."""

    example = "faults show nan_logits"
    name: str = opt.argument("A fault's name.", default=..., metavar="NAME", complete=complete.faults)

    def run(self) -> int:
        from specdebug.report.faults import fault_shown

        return self.answer(fault_shown(find_class(self.name)))


class FaultVerify(opt.DeviceOptions, opt.PageOptions):
    """Inject every class in a small scenario of every worker, and say what caught it, how soon, and what alone.

    Exit code 1 when damage was done that nothing saw, when something was seen where nothing was done, or when a class
    was not injected; 125 when this machine lacks the device. After a Ctrl-C the matrix is of what had been measured. On
    a GPU, classes act at sites outside the captured graphs; those that have none are left out, and named. So are those
    that have no meaning in the engine of --target.
    """

    example = "faults verify --class nan_logits --html faults.html"
    name: list[str] | None = opt.option(
        "Inject this class of faults only (repeatable).", "--class", metavar="NAME", complete=complete.faults
    )
    worker: list[str] | None = opt.option(
        "Inject into this worker of the engine only (repeatable); the table shows their names.",
        metavar="NAME",
        complete=complete.worker_names,
    )
    seeds: int = opt.option("Inject each with so many seeds, counted up from 0.", default=1, min=1)
    jobs: int = opt.jobs_option()

    def run(self) -> int:
        from specdebug.campaign.loops.fault_matrix import verify
        from specdebug.report.faults import FaultsProgress, faults_report

        kinds = [find_class(each) for each in dict.fromkeys(self.name)] if self.name else list(CLASSES.values())
        self.check_outputs()
        ground = self._ground()
        began = time.monotonic()
        with interrupts.held():
            with on_stderr(FaultsProgress) as watcher:
                matrix = verify(kinds, self.seeds, self.jobs, Library(), watcher.moved, ground)
            if matrix.made or matrix.trouble is None:
                tell(faults_report(matrix, time.monotonic() - began), self, trouble=matrix.trouble)
        if matrix.trouble is not None:
            raise matrix.trouble
        return matrix.exit_code

    def _ground(self) -> Ground:
        """The engine to inject into, and its workers. Raises BadFault for a worker that there is not."""
        from specdebug.campaign.loops.fault_matrix import Ground

        over, workers = self.engine(), self.worker or ()
        on = DEFAULT if self.target is None else parse_target(self.target)
        for name in workers:
            if name not in LINEUP:
                raise BadFault(f"--worker: no worker '{one_line(name, 60)}'{did_you_mean(name, LINEUP)}")
        if workers and on != DEFAULT:
            raise BadFault(f"--worker is for our own engine's; {on} has one")
        chosen = tuple(entry for name, entry in LINEUP.items() if name in workers or not workers)
        return Ground(str(over.get("device", "cpu")), on, str(over["dtype"]) if "dtype" in over else None, chosen)


COMMANDS: dict[str, type[opt.Command]] = {"list": FaultList, "show": FaultShow, "verify": FaultVerify}
