"""``specdebug toggles``: list, show, verify and check the fixes that can be reverted."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.command import CommandSource
from specdebug.cli import complete
from specdebug.cli import options as opt
from specdebug.cli.listings import CHECKS, ListOptions
from specdebug.cli.mine import ToggleMine, ToggleMissing
from specdebug.cli.output import note, on_stderr, progress, tell, workers
from specdebug.cli.siblings import ToggleSiblings
from specdebug.patching.drift import check, open_dist
from specdebug.patching.drift.check import engines
from specdebug.targets.installs.store import find_installed, store_folder
from specdebug.targets.settings import ReleasedEngine, engine_of, parse_target

if TYPE_CHECKING:
    from specdebug.campaign.loops.verify import LatentCheck, Matrix
    from specdebug.patching.toggles import Toggle
    from specdebug.scenario.library import Library
    from specdebug.targets.settings import TargetChoice


class ToggleCheckCommand(ListOptions):
    """Match every fix's patches against a release of another engine, and that engine's own reverts with them.

    Nothing of the release is imported. Exit code 1 when a patch of ours is stale, 125 when none is for this release;
    what is stale in the engine's own registry is reported only.
    """

    example = "toggles check --against sglang-0.5.23-py3-none-any.whl"
    against: Path = opt.option(
        "Match the patches against this release: a wheel (.whl), an sdist (.tar.gz) or a source tree.",
        default=...,
        metavar="DIST",
    )
    version: str | None = opt.option("Take a source tree for this version, if it does not state its own.")

    def run(self) -> int:
        from specdebug.report.toggles import drift_report

        registry = self.library().registry
        return self.answer(drift_report(check(open_dist(self.against, engines(registry), self.version), registry)))


class ToggleList(ListOptions):
    """List every registered fix, and what detects it when it is reverted."""

    example = "toggles list --json"

    def run(self) -> int:
        from specdebug.report.toggles import toggle_list

        return self.answer(toggle_list(self.library().registry.all))


class ToggleShow(ListOptions):
    """Show one fix: what it mends, what reverting it changes, and what should notice."""

    example = "toggles show 27338"
    number: str = opt.argument("A pull request number.", default=..., metavar="PR", complete=complete.all_fixes)

    def run(self) -> int:
        from specdebug.report.toggles import toggle_shown

        return self.answer(toggle_shown(self.library().registry.find(self.number)))


class ToggleVerify(opt.CommandOptions, opt.PlanOption, opt.JsonOptions, opt.ContentOptions):
    """Run every fix's scenario with the fix applied (must be silent) and reverted (must fail as stated).

    With -- CMD ... that command takes the scenarios' place, under `specdebug run`: it must pass with nothing reverted,
    and fail at least once with each fix of the packages that it imports. One whose lines never ran is not tried (125).

    Every edit of a fix must have run: where one did not, the scenario's other arms are run with the fix reverted, too.
    Exit code 1 when one is rotten, 125 when this machine cannot run one; it says which and why. With --backend, a fix
    whose lines (or whose probe) lie in another plan keeps its scenario's own, and the table says so.
    """

    example = "toggles verify 27338"
    held = True
    numbers: list[str] | None = opt.argument(
        "The numbers of the fixes to verify; all of them unless given.", metavar="[PR]...", complete=complete.fixes
    )
    seeds: int | None = opt.option(
        "Run each scenario with so many seeds, counted up from its own (1 unless given), a command so often (5).", min=1
    )
    jobs: int = opt.option(
        "Run so many workers at a time; 0 is one more than there are cores, of commands 1.",
        "--jobs",
        "-j",
        default=0,
        min=0,
    )
    no_locate: bool = opt.no_locate_option()

    def run(self) -> int:
        self.engine()
        opt.positive(self.timeout)
        self.check_outputs()
        library = self.library()
        if command := opt.words_after_dashes(self.ctx):
            return self._by_command(library, command)
        if flag := self.named(opt.CommandOptions):
            raise SpecDebugError(f"{flag} is for a command, after --")
        chosen, on, latent = self._chosen(library)
        from specdebug.campaign.loops.verify import Matrix
        from specdebug.report.toggles import matrix_report

        empty = not chosen and latent  # a registry without toggles is another matter
        matrix = Matrix((), False) if empty else self._matrix(library, chosen, on)
        return tell(matrix_report(matrix, latent), self)

    def _by_command(self, library: Library, command: Sequence[str]) -> int:
        """Verify fixes by a command instead of their scenarios."""
        from specdebug.campaign.trials.hooked import HookedSource
        from specdebug.campaign.trials.verified import verify_by
        from specdebug.report.progress import PlainLines
        from specdebug.report.verified import CommandAsked, trial_line, verified_report

        if flag := self.named(opt.PlanOption) or ("--no-locate" if self.no_locate else None):
            raise SpecDebugError(f"{flag} is for scenarios; a command has none")
        registry, hooked = library.registry, self.hooked(command)
        named = [registry.find(number) for number in dict.fromkeys(self.numbers or ())]
        limits: dict[str, Any] = {"capacity": self.jobs or 1, "timeout_s": self.timeout}
        source = CommandSource(command, named or registry.toggles.values(), **limits)
        if hooked:
            source = HookedSource(command, registry, numbers=[each.pr for each in named or registry.all], **limits)
        content = self.content_words() if hooked else None
        asked = CommandAsked(
            command, self.seeds or 5, hooked, lambda reverted: opt.run_line(command, reverted, content)
        )
        with contextlib.closing(source), on_stderr(PlainLines) as lines:
            lines.say("the first trial begins, with nothing reverted")
            found = verify_by(source, registry, named, asked.trials, lambda ended: lines.say(trial_line(*ended)))
        return tell(verified_report(found, asked), self, trouble=found.trouble)

    def _matrix(self, library: Library, chosen: Sequence[Toggle], on: TargetChoice | None) -> Matrix:
        with workers(self.jobs) as pool:
            from specdebug.campaign.loops.verify import verify
            from specdebug.diverge.locate import Locator

            with progress() as watcher:
                located = list if self.no_locate else Locator(pool, library, watcher).located
                return verify(pool, library, chosen, self.seeds or 1, watcher, self.engine(), located, on)

    def _chosen(self, library: Library) -> tuple[tuple[Toggle, ...], TargetChoice | None, Sequence[LatentCheck]]:
        """The fixes of these numbers, else all, with the edits of the engine that a target runs and what shows them
        there, the target, and those that are latent there. Raises SpecDebugError where nothing shows one that is
        named."""
        from specdebug.campaign.loops.verify import check_latent

        on = None if self.target is None else parse_target(self.target)
        target = DEFAULT if on is None else on
        named = ",".join(self.numbers or ())
        known = library.registry.listed(named, engine_of(target)) if named else library.all_toggles(target)
        if not isinstance(on, ReleasedEngine):
            return tuple(known), on, ()
        here = find_installed(store_folder(None if on.store is None else Path(on.store)), on.named)
        found = {toggle.pr: toggle.of_release(here.engine, here.version) for toggle in known}
        latent = check_latent(here, known)
        guarded = {check.toggle.pr for check in latent}
        if lacking := [str(pr) for pr, toggle in found.items() if toggle is None and pr not in guarded]:
            said = f"no scenario is known to show {', '.join(lacking)} in {here.release}"
            if named:
                raise SpecDebugError(said)
            note(said)
        return tuple(toggle for toggle in found.values() if toggle is not None), on, latent


COMMANDS: dict[str, type[opt.Command]] = {
    "check": ToggleCheckCommand,
    "list": ToggleList,
    "mine": ToggleMine,
    "missing": ToggleMissing,
    "show": ToggleShow,
    "siblings": ToggleSiblings,
    "verify": ToggleVerify,
    **CHECKS,
}
