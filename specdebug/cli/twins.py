"""``specdebug twins``: the same requests, served in two ways that must not matter."""

from dataclasses import replace

from specdebug.cli import complete
from specdebug.cli import options as opt
from specdebug.cli.output import progress, tell, workers
from specdebug.faults.declare import parse_fault


class TwinsCommand(opt.EngineOptions, opt.ResultOptions, opt.RunOptions, opt.ContentOptions):
    """Serve scenarios' requests in two ways that must not matter, and say where the outputs part.

    Relations: plain (no drafts), cold, alone, order, again, interrupted, retracted, chunks, eager, overlap, page,
    backend, restart, release, runner, reference. Tokens, stop reasons and log probabilities must stay, and accept
    lengths where drafts are alike; near-ties are excused by a reference. Runs of a broken twin are laid beside each
    other for the first tensor that differs.

    Exit code 0 when all hold, 1 when a twin is broken, 125 when nothing could be compared (of several scenarios the
    worst: 1 before 125 before 0).
    """

    example = "twins scenarios/topk_page_table.yaml --relation plain --relation cold"
    held = True
    files: list[str] = opt.argument(
        "Scenario files, names of shipped ones, or folders of scenarios.",
        metavar="SCENARIO...",
        default=...,
        complete=complete.replayed,
    )
    relation: list[str] | None = opt.option(
        "Try this relation (repeatable); unless given, the scenario's, else all but release that have a meaning.",
        metavar="NAME",
        complete=complete.relations,
    )
    arm: list[str] | None = opt.arm_option(
        "Serve this arm (repeatable), and expect nothing of it; unless given, the first, and those that the scenario "
        "says are broken."
    )
    revert: list[str] | None = opt.revert_option("Revert these fixes as well, on both sides.")
    fault: list[str] | None = opt.fault_option("Inject this fault as well (repeatable), on both sides.")
    seed: int | None = opt.seed_option()
    no_locate: bool = opt.no_locate_option()

    def run(self) -> int:
        self.check_outputs()
        with workers(self.jobs) as pool:
            from specdebug.apps.twins.plan import plan_twins, relation_of
            from specdebug.apps.twins.run import TwinRunner
            from specdebug.report.twins import twins_report

            library = self.library()
            relations = [relation_of(name).name for name in self.relation or ()]
            choices = replace(
                self.choices(),
                arms=tuple(self.arm or ()),
                reverts=opt.numbers_of(self.revert),
                faults=tuple(parse_fault(text) for text in self.fault or ()),
                seed=self.seed,
                timeout_s=opt.positive(self.timeout),
            )
            scenarios = library.gather(self.files)
            keys = [f"{each.name}: " if len(scenarios) > 1 else "" for each in scenarios]
            named = zip(scenarios, keys, strict=True)
            plans = [plan_twins(each, choices, relations, library, key) for each, key in named]
            with progress() as watcher:
                answers = TwinRunner(pool, library, watcher, not self.no_locate).run(plans)
        return tell(twins_report(answers), self)
