"""``specdebug mutants``: which small faults in the engine's code the shipped scenarios' verdicts see."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from specdebug.base import interrupts
from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.state import own_packages
from specdebug.cli import complete
from specdebug.cli import options as opt
from specdebug.cli.output import UNDECIDED, on_stderr, tell, tell_rerun
from specdebug.targets.settings import parse_target

if TYPE_CHECKING:
    from specdebug.apps.mutants.find import Code
    from specdebug.apps.mutants.measure import Measured
    from specdebug.targets.settings import TargetChoice


class MutantsCommand(opt.ClusterOptions, opt.JournalOptions, opt.PageOptions, opt.ContentOptions):
    """Change an engine's code in one place at a time, and count the changes that some scenario's verdict sees.

    The engine is ours, or a release of SGLang that is installed here, none of whose files is touched.

    A mutant is effective if a tensor, a token or a book differs from the sound engine's in some arm that is to pass,
    or the engine fails; it is caught if that arm's verdict is fail. Every mutant that was run is kept in a journal: the
    same command goes on where it was stopped. Exit code 0 when it was measured, whatever survived; 1 when the score is
    below --min-score or the engine as it is does not pass, 125 when nothing could be measured.
    """

    example = "mutants --html mutants.html"
    scenarios: list[str] | None = opt.argument(
        "Scenarios to run; every shipped one unless given.",
        metavar="SCENARIO",
        complete=complete.scenarios,
        show_default=False,
    )
    sample: int = opt.option("Draw so many mutants; 0 takes all of them.", default=40, min=0)
    seed: int = opt.option("Draw the mutants from this seed.", default=0, min=0)
    file: list[str] | None = opt.option(
        "Change only these files of the engine, as 'speculative/*.py' (repeatable).", metavar="GLOB"
    )
    target: str | None = opt.option(
        "Change the code of this engine: embedded, unless given, or sglang==VERSION.",
        metavar="TARGET",
        complete=complete.targets,
    )
    max_time: float | None = opt.option("Begin no mutant after so long.", metavar="SECONDS")
    jobs: int | None = opt.trials_at_a_time(
        "Run so many mutants at a time; unless given, 2, on a cluster as many as it has CPUs."
    )
    min_score: float | None = opt.option(
        "Exit with 1 if a lower share of the effective mutants is caught.", metavar="PERCENT", min=0, max=100
    )
    listed: bool = opt.option("List the mutants that there are, and run none.", "--list", default=False)

    def run(self) -> int:
        from specdebug.apps.mutants.find import code_of
        from specdebug.report.mutants import mutants_list

        on_ray, longest = self.on_ray, opt.positive(self.max_time)
        target = parse_target(self.target or DEFAULT)
        code = code_of(target)
        if self.listed:
            return self.answer(mutants_list(code.mutants(*self.file or ())))
        self.check_outputs()
        until = float("inf") if longest is None else time.monotonic() + longest
        with interrupts.held():
            return self._measure(code, target, until, on_ray=on_ray)

    def _measure(self, code: Code, target: TargetChoice, until: float, *, on_ray: bool) -> int:
        from specdebug.apps.mutants.measure import MutantSearch, identity_of
        from specdebug.apps.mutants.sound import sound_arms
        from specdebug.campaign.trials.ray_executor import RaySource
        from specdebug.report.mutants import MutantQuestion, MutantsProgress, mutants_report

        library, found = self.library(), code.mutants(*self.file or ())
        scenarios = library.gather(self.scenarios) if self.scenarios else library.scenarios()
        arms, refused = sound_arms(library, scenarios, target)
        if not arms:
            why = f"; {refused[0].name}: {refused[0].why}" if refused else ""
            raise SpecDebugError(
                f"mutants needs an arm that is to pass, on the CPU; none of these scenarios has one{why}"
            )
        named = "the engine" if target == DEFAULT else str(target)
        identity = identity_of(arms, self.sample, self.seed, self.file or ())
        path = self.journal_path("mutants", identity)
        about = f"mutants of {named}, {self.sample or 'all'} of them, seed {self.seed}"
        spread = partial(RaySource, address=self.ray_address, jobs=self.jobs) if on_ray else None
        with self.opened(path, identity, about, own_packages()) as journal:
            search = MutantSearch(code, arms, found, self.sample, self.seed, self.jobs or 2, spread, until)
            with on_stderr(MutantsProgress) as watcher:
                measured = search.run(journal, watcher)
            tell_rerun(measured.rerun)
        asked = MutantQuestion(named, self.sample, self.seed, str(path), tuple(refused))
        return tell(mutants_report(measured, asked, self._exit_code(measured)), self, trouble=measured.trouble)

    def _exit_code(self, measured: Measured) -> int:
        if measured.trouble is not None:
            return measured.trouble.exit_code
        if measured.reason == "interrupted":
            return interrupts.exit_code()
        if measured.total.rate is None:
            return UNDECIDED
        return int(self.min_score is not None and 100 * measured.total.rate < self.min_score)
