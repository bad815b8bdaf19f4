"""``specdebug engines``: install releases of SGLang and vLLM, list them, check them, remove them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.cli.options import Debug, Json, open_library
from specdebug.cli.output import answer, note, write
from specdebug.cli.running import progress, workers

if TYPE_CHECKING:
    from specdebug.targets.installs.store import Installed

app = typer.Typer(help="Install releases of SGLang and vLLM, to run scenarios on.", no_args_is_help=False)

Named = Annotated[str, typer.Argument(metavar="RELEASE", help="As in sglang==0.5.13; without a version, the newest.")]
Into = Annotated[
    Path | None,
    typer.Option("--into", metavar="DIR", help="The folder of all of them; else SPECDEBUG_ENGINES, or the cache."),
]


class _Told:
    """A line when a step begins, and one when it ends."""

    def begin(self, what: str) -> None:
        note(f"== {what}")

    def done(self, seconds: float) -> None:
        note(f"   done in {seconds:.0f} s")

    def skipped(self, what: str) -> None:
        note(f"== {what}: was done before")


@app.command("install")
@interrupts.held()
def install(
    release: Named,
    into: Into = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="For a CPU: without what only a GPU needs (the default).")] = False,
    cuda: Annotated[bool, typer.Option("--cuda", help="For a GPU, with all that it asks for.")] = False,
    python: Annotated[
        Path | None, typer.Option("--python", metavar="PATH", help="An environment of your own that has it.")
    ] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Serve no tokens with it.")] = False,
    debug: Debug = False,
) -> int:
    """Make an environment for a release, or go on with one, and serve ten tokens with it.

    Packages come from where pip looks by your own settings. Exit code 1 when what is installed does not serve.
    """
    from specdebug.targets.installs.release import find_recipe, parse_release
    from specdebug.targets.installs.steps import adopt
    from specdebug.targets.installs.steps import install as install_by
    from specdebug.targets.installs.store import store_folder

    if cpu and cuda:
        raise SpecDebugError("--cpu or --cuda, not both")
    named, store, device = parse_release(release), store_folder(into), "cuda" if cuda else "cpu"
    try:
        if python is None:
            there = install_by(find_recipe(named, device), store, _Told())
        else:
            there = adopt(named, device, python, store)
    except KeyboardInterrupt:
        note("stopped; the same command goes on from here")
        raise
    write(f"{there.release} for {there.device} is in {there.folder}")
    if there.taken_as:
        write(there.taken_as)
    if no_check:
        write("\n".join(_fit_lines(there)))
        return 0
    return check(str(there.release), into=into)


@app.command("list")
def list_engines(into: Into = None, as_json: Json = False, debug: Debug = False) -> int:
    """Every environment, what it was checked to do, and what else could be installed; exit code 2 where the record of
    one is damaged."""
    from specdebug.report.engines import engines_list
    from specdebug.targets.installs.release import recipes
    from specdebug.targets.installs.store import look, store_folder

    store = store_folder(into)
    (there, damaged), known = look(store), recipes()
    answer(as_json, engines_list(store, there, damaged, known))
    if damaged:
        raise damaged[0].error
    return 0


@app.command("check")
@interrupts.held()
def check(release: Named, into: Into = None, debug: Debug = False) -> int:
    """Say what of ours fits a release by its files; serve ten tokens with it, with drafts and without, and hold them to
    the reference. Exit code 1 if they are not right, 125 if it cannot be told."""
    from specdebug.campaign.loops.replays import SCENARIO, check_engine
    from specdebug.report.engines import check_lines
    from specdebug.targets.installs.release import parse_release
    from specdebug.targets.installs.store import find_installed, store_folder

    there = find_installed(store_folder(into), parse_release(release))
    write("\n".join(_fit_lines(there)))
    library = open_library(None)
    with workers(1) as pool, progress() as watcher:
        checked = check_engine(pool, library, library.scenario(SCENARIO), there, watcher)
    write("\n".join(check_lines(checked)))
    return checked.exit_code


def _fit_lines(there: Installed) -> list[str]:
    """Every look and stand-in that has its places in a release, counted, and the others by name."""
    from specdebug.report.engines import fit_lines
    from specdebug.targets.installs.fit import fit_of

    return fit_lines(there, fit_of(there))


@app.command("remove")
def remove(release: Named, into: Into = None, debug: Debug = False) -> int:
    """Delete an environment; one of your own is only forgotten."""
    from specdebug.targets.installs import store as kept
    from specdebug.targets.installs.release import parse_release

    folder = kept.store_folder(into)
    named = parse_release(release)
    every, lost = kept.look(folder)
    there = [each for each in every if each.engine == named.engine and named.admits(each.version)]
    found = {each.folder: str(each.release) for each in there}
    found |= {each.folder: each.folder.name for each in lost if each.may_be(named)}
    if len(found) != 1:
        kept.find_installed(folder, named)  # which says what is there
        raise SpecDebugError(f"{release} may be any of {', '.join(found.values())}; name one")
    kept.remove(*found)
    own = [each.python for each in there if not each.ours]
    write(f"{', '.join(found.values())} is " + (f"forgotten; {own[0]} is as it was" if own else "removed"))
    return 0
