"""``specdebug toggles mine``: from fixes in git to toggles; ``missing``: which of them an engine lacks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.base.errors import SpecDebugError
from specdebug.base.git import ask
from specdebug.base.yamlio import parse_yaml
from specdebug.cli import options as opt
from specdebug.cli.listings import ListOptions
from specdebug.cli.new import not_ours, write_schemas, written
from specdebug.cli.output import note, workers, write
from specdebug.patching.drift import open_dist
from specdebug.patching.drift.check import engines
from specdebug.patching.toggles import read_toggle
from specdebug.scenario.library import Library
from specdebug.targets.installs.fit import dist_of
from specdebug.targets.installs.store import find_installed, store_folder
from specdebug.targets.settings import ReleasedEngine, parse_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdebug.apps.mining.fitting import Fitted
    from specdebug.apps.mining.fix import Fix
    from specdebug.apps.mining.written import Shown
    from specdebug.patching.drift.dist import Dist


class ToggleMissing(ListOptions):
    """Say which known fixes an engine has, by the lines of its code, and which it lacks.

    Known are the shipped toggles and those of --content, such as mined ones. Nothing of the engine is imported.
    Exit code 1 when it lacks one, 125 when no fix of it is known.
    """

    example = "toggles missing --engine sglang==0.5.18"
    engine: str = opt.option(
        "Look at this one: an installed release, a wheel, an sdist or a source tree.",
        default=...,
        metavar="sglang==VERSION|DIST",
    )

    def run(self) -> int:
        from specdebug.apps.mining.missing import known_fixes
        from specdebug.report.toggles import missing_report

        registry = self.library().registry
        path = Path(self.engine)
        dist = open_dist(path, engines(registry)) if path.exists() else installed_dist(self.engine, "--engine")
        return self.answer(missing_report(str(dist), known_fixes(dist, registry.all)))


class ToggleMine(opt.Command):
    """Make toggles from fixes in a git checkout of a Python engine.

    Each commit's diff is turned round, cut into edits of functions, and tried: with them each module has the syntax
    tree that it had before the fix. With --target sglang==VERSION the edits are fitted to that release: code that was
    moved, renamed or broken into other lines is found by its words. With --prove the scenarios are run with the fix
    reverted until one shows it. Exit code 0 when a toggle was written, 1 when none could be.
    """

    example = "toggles mine --repo ~/src/sglang --range HEAD~20..HEAD -o mined"

    repo: Path = opt.option("Take the fixes from this checkout.", default=..., metavar="DIR")
    commit: list[str] | None = opt.option("Take this commit (repeatable).", metavar="REV")
    range: str | None = opt.option("Take all commits of this range that no merge brought in.", metavar="A..B")
    pr: list[int] | None = opt.option(
        "Take the commit whose subject ends in the number of this pull request (repeatable).", metavar="N", min=1
    )
    output: Path = opt.option("Write toggles/ into this folder of content.", "-o", "--output", default=Path("."))
    target: list[str] | None = opt.option(
        "Make the edits fit this installed release (repeatable).", metavar="sglang==VERSION"
    )
    prove: bool = opt.option("Run scenarios with the fix reverted until one shows it.", default=False)
    scenario: list[str] | None = opt.option(
        "Run this scenario to prove it (repeatable); all of them unless given.", metavar="NAME"
    )
    force: bool = opt.option("Write over toggles that are there.", default=False)

    def run(self) -> int:
        from specdebug.campaign.trials.commits import top_of

        if sum(map(bool, (self.commit, self.range, self.pr))) != 1:
            raise SpecDebugError("toggles mine needs one of --commit, --range and --pr")
        if self.scenario and not self.prove:
            raise SpecDebugError("--scenario is for --prove")
        if self.prove and not self.target:
            raise SpecDebugError("--prove needs --target, the release to run scenarios on")
        top = top_of(self.repo)
        dists = {target: installed_dist(target, "--target") for target in self.target or ()}
        commits = self._commits(top)
        made = [number for commit in commits if (number := self._mine(top, commit, dists)) is not None]
        if made:
            write_schemas(self.output)
        write(f"{len(made)} of {len(commits)} fixes are toggles in {self.output / 'toggles'}")
        return 0 if made else 1

    def _commits(self, top: Path) -> Sequence[str]:
        from specdebug.apps.mining.fix import fix_named
        from specdebug.campaign.trials.commits import commit_of

        if self.commit:
            return [commit_of(top, each, "commit") for each in self.commit]
        if self.pr:
            return [fix_named(top, str(number)) for number in self.pr]
        first, dots, last = str(self.range).partition("..")
        if not dots or not first:
            raise SpecDebugError(f"--range {self.range}: a range is written A..B, as in HEAD~20..HEAD")
        ends = commit_of(top, first, "range"), commit_of(top, last.lstrip(".") or "HEAD", "range")
        found = ask(top, "rev-list", "--reverse", "--no-merges", f"{ends[0]}..{ends[1]}") or ""
        if not found:
            raise SpecDebugError(f"--range {self.range}: there is no commit in it")
        return found.split()

    def _mine(self, top: Path, commit: str, dists: dict[str, Dist]) -> int | None:
        """Write the toggle of a commit, and return its number; None where none can be, as is told."""
        from specdebug.apps.mining.fitting import Unfit, fitted
        from specdebug.apps.mining.fix import fix_of

        try:
            fix = fix_of(top, commit, lambda line: None)
            for each in fix.made:
                not_ours(each.source.name)
        except SpecDebugError as error:
            note(f"{commit[:10]}: {error}")
            return None
        fits: dict[str, Fitted] = {}
        for target, dist in dists.items():
            try:
                fits[target] = fitted(dist, fix)
            except Unfit as error:
                note(f"{fix.number}: {error}")
        if dists and not fits:
            return None
        file = self.output / "toggles" / f"{fix.number}.yaml"
        if file.exists() and not self.force:
            note(f"{fix.number}: {file} is there already; --force writes over it")
            return None
        self._write(fix, file, dists, fits, ())
        if self.prove:
            self._prove(fix, file, dists, fits)
        return fix.number

    def _write(
        self, fix: Fix, file: Path, dists: dict[str, Dist], fits: dict[str, Fitted], shown: Sequence[Shown]
    ) -> None:
        from specdebug.apps.mining.written import edits_by_version, toggle_text, wrapped

        by_version = edits_by_version(fix, {dists[target]: one for target, one in fits.items()})
        notes = [wrapped(moved) for one in fits.values() for moved in one.moved]
        text = toggle_text(fix, file, by_version, shown, notes)
        read_toggle(parse_yaml(text, str(file)))
        written(file, text)
        edits = sum(len(pairs) for pairs in next(iter(by_version.values())).values())
        write(f"{file}: {fix.title} ({edits} edit{'' if edits == 1 else 's'}{', shown' if shown else ''})")

    def _prove(self, fix: Fix, file: Path, dists: dict[str, Dist], fits: dict[str, Fitted]) -> None:
        from specdebug.apps.mining.prove import Proving, closest_first
        from specdebug.apps.mining.written import Shown

        library = Library([self.output])
        shown: list[Shown] = []
        words = [*fix.title.split(), *fix.functions]
        names = self.scenario or closest_first(list(library.files("scenarios")), words)
        with workers(1) as pool:
            for target in fits:
                proving = Proving(pool, library, fix.number, parse_target(target), note)
                found = next((each for each in proving.tried(names) if each.shows), None)
                if found is not None:
                    shown.append(Shown(dists[target].name, found.scenario, found.shows))
                    break
        if shown:
            self._write(fix, file, dists, fits, shown)
        else:
            note(f"{fix.number}: no scenario shows it")


def installed_dist(name: str, option: str) -> Dist:
    """The files of an installed release. Raises SpecDebugError, which names the ``option``."""
    parsed = parse_target(name)
    if not isinstance(parsed, ReleasedEngine):
        raise SpecDebugError(f"{option} {name}: it takes an installed release, as sglang==0.5.23")
    return dist_of(find_installed(store_folder(None if parsed.store is None else Path(parsed.store)), parsed.named))
