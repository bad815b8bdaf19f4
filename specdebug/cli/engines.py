"""``specdebug engines``: install releases of SGLang and vLLM, list them, check them, remove them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specdebug.base.content import shipped_root
from specdebug.base.errors import SpecDebugError
from specdebug.cli import options as opt
from specdebug.cli.output import note, progress, workers, write
from specdebug.scenario.library import Library
from specdebug.targets.installs import store as kept
from specdebug.targets.installs.fit import fit_of
from specdebug.targets.installs.release import parse_release, recipes
from specdebug.targets.installs.store import Installed, find_installed, look, store_folder
from specdebug.targets.settings import ReleasedEngine, parse_target


class _Told:
    """A line when a step begins, and one when it ends."""

    def begin(self, what: str) -> None:
        note(f"== {what}")

    def done(self, seconds: float) -> None:
        note(f"   done in {seconds:.0f} s")

    def skipped(self, what: str) -> None:
        note(f"== {what}: was done before")


class StoreOption(opt.Command):
    """The folder of environments."""

    into: Path | None = opt.option(
        "Keep the environments in this folder; else in SPECDEBUG_ENGINES, or the cache.", metavar="DIR"
    )

    @property
    def store(self) -> Path:
        return store_folder(self.into)


class ReleaseOptions(StoreOption):
    """One release."""

    release: str = opt.argument(
        "An engine and its version, as sglang==0.5.13; without a version, the newest.", default=..., metavar="RELEASE"
    )

    def tell_fit(self, there: Installed) -> None:
        """Say of every look and stand-in if it has its places in a release: counted, the others by name."""
        from specdebug.report.listings import fit_lines

        write("\n".join(fit_lines(there, fit_of(there))))

    def check_served(self, there: Installed) -> int:
        """Say what fits a release, and serve ten tokens with it."""
        from specdebug.campaign.loops.replays import SCENARIO, check_engine
        from specdebug.report.listings import check_lines

        self.tell_fit(there)
        library = Library()
        with workers(1) as pool, progress() as watcher:
            checked = check_engine(pool, library, library.scenario(SCENARIO), there, watcher)
        write("\n".join(check_lines(checked)))
        return checked.exit_code


class InstallCommand(ReleaseOptions):
    """Make an environment for a release, or go on with one, and serve ten tokens with it.

    Packages come from where pip looks by your own settings. Without a version it is the newest that pip finds; of one
    that is newer than every recipe it is said what is not known. Exit code 1 when what is installed does not serve.
    """

    example = "engines install sglang==0.5.23"
    held = True
    cpu: bool = opt.option("Install for a CPU, without what only a GPU needs (the default).", default=False)
    cuda: bool = opt.option("Install for a GPU, with all that it asks for.", default=False)
    python: Path | None = opt.option("Use your own environment: the path of its Python.", metavar="PATH")
    no_check: bool = opt.option("Do not serve tokens with it to see that it works.", default=False)

    def run(self) -> int:
        from specdebug.targets.installs.newest import recipe_for
        from specdebug.targets.installs.steps import adopt, install

        if self.cpu and self.cuda:
            raise SpecDebugError("--cpu or --cuda, not both")
        named, device = parse_release(self.release), "cuda" if self.cuda else "cpu"
        try:
            if self.python is None:
                recipe, told = recipe_for(named, device)
                for line in told:
                    note(line)
                there = install(recipe, self.store, _Told())
            else:
                there = adopt(named, device, self.python, self.store)
        except KeyboardInterrupt:
            note("stopped; the same command goes on from here")
            raise
        write(f"{there.release} for {there.device} is in {there.folder}")
        for line in filter(None, (there.taken_as, there.mix)):
            write(line)
        if self.no_check:
            self.tell_fit(there)
            return 0
        return self.check_served(find_installed(self.store, there.release))


class EngineList(StoreOption, opt.JsonFlag):
    """List every environment, what it was checked to do, and what else could be installed; exit code 2 where the record
    of one is damaged."""

    example = "engines list"
    abilities: bool = opt.option(
        "Show what `engines measure` found: algorithm, architecture and relation, each pass, fail or why not.",
        default=False,
    )

    def run(self) -> int:
        if self.abilities:
            return self._abilities()
        from specdebug.report.listings import engines_list

        there, damaged = look(self.store)
        self.answer(engines_list(self.store, there, damaged, recipes()))
        if damaged:
            raise damaged[0].error
        return 0

    def _abilities(self) -> int:
        from specdebug.apps.twins.abilities import known_abilities
        from specdebug.report.listings import abilities_list

        self.answer(abilities_list([(each, known_abilities(each)) for each in look(self.store)[0]]))
        return 0


class EngineMeasure(StoreOption):
    """Serve scenarios on an installed engine by every relation of twins, and keep what each comes to beside it.

    ``engines list --abilities`` shows it. What was measured before of other scenarios stays.
    """

    example = "engines measure vllm/v2==0.32.0 scenarios/twins/eagle_chain.yaml"
    held = True
    target: str = opt.argument(
        "An engine that is installed, as sglang==0.5.23 or vllm/v2==0.32.0.", default=..., metavar="TARGET"
    )
    files: list[str] | None = opt.argument(
        "Scenario files, names of shipped ones, or folders of scenarios; else the shipped twins.",
        metavar="SCENARIO...",
        default=None,
    )
    jobs: int = opt.jobs_option()

    def run(self) -> int:
        from specdebug.apps.twins.abilities import keep_abilities, measured
        from specdebug.apps.twins.run import TwinRunner
        from specdebug.report.listings import ability_line

        named = parse_target(self.target, "TARGET")
        if not isinstance(named, ReleasedEngine):
            raise SpecDebugError(f"{self.target} is no engine that is installed here")
        target = replace(named, store=str(self.store))
        here = find_installed(self.store, target.named)
        library = Library()
        scenarios = library.gather(self.files or [str(shipped_root() / "scenarios" / "twins")])
        with workers(self.jobs) as pool, progress() as watcher:
            runner = TwinRunner(pool, library, watcher, locates=False)
            for row in measured(scenarios, target, runner, library):
                keep_abilities(here, target, row)
                write(ability_line(row))
        return 0


class EngineCheck(ReleaseOptions):
    """Say what of ours fits a release by its files; serve ten tokens with it, with drafts and without, and hold them to
    the reference. Exit code 1 if they are not right, 125 if it cannot be told."""

    example = "engines check sglang==0.5.23"
    held = True

    def run(self) -> int:
        return self.check_served(find_installed(self.store, parse_release(self.release)))


class EngineRemove(ReleaseOptions):
    """Delete an environment; one of your own is only forgotten."""

    example = "engines remove sglang==0.5.23"

    def run(self) -> int:
        named = parse_release(self.release)
        every, lost = kept.look(self.store)
        there = [each for each in every if each.engine == named.engine and named.admits(each.version)]
        found = {each.folder: str(each.release) for each in there}
        found |= {each.folder: each.folder.name for each in lost if each.may_be(named)}
        if len(found) != 1:
            kept.find_installed(self.store, named)  # which says what is there
            raise SpecDebugError(f"{self.release} may be any of {', '.join(found.values())}; name one")
        kept.remove(*found)
        own = [each.python for each in there if not each.ours]
        ended = f"forgotten; {own[0]} is as it was" if own else "removed"
        write(f"{', '.join(found.values())} is {ended}")
        return 0


COMMANDS: dict[str, type[opt.Command]] = {
    "install": InstallCommand,
    "list": EngineList,
    "check": EngineCheck,
    "measure": EngineMeasure,
    "remove": EngineRemove,
}
