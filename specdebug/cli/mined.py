"""Fixes that no toggle has, mined from a checkout for one run."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.base.errors import SpecDebugError
from specdebug.cli import options as opt
from specdebug.cli.output import note, own_folder
from specdebug.targets.settings import ReleasedEngine, parse_target

if TYPE_CHECKING:
    from specdebug.apps.mining.fitting import Fitted
    from specdebug.patching.drift.dist import Dist
    from specdebug.scenario.library import Library


class FromCheckout(opt.ContentOptions):
    """The content, with toggles of the numbers that are to be reverted and that it lacks. They are kept in the folder
    ``.specdebug/mined``, which then counts as one of ``--content``: what is told to be run again names it."""

    revert: list[str] | None
    repo: Path | None = opt.option(
        "Take a fix that no toggle has from this checkout, by the number that ends its subject.", metavar="DIR"
    )

    def library(self) -> Library:
        return self._with_mined if self.repo else super().library()

    @cached_property
    def _with_mined(self) -> Library:
        known = {number for toggle in super().library().registry.all for number in toggle.numbers}
        lacking = [number for number in opt.numbers_of(self.revert) if number not in known]
        for number in dict.fromkeys(lacking):
            self._mine(number)
        if lacking:
            self.content = [*(self.content or ()), _folder()]
        return super().library()

    def _mine(self, number: int) -> None:
        """Write the toggle of a fix. Raises SpecDebugError where the checkout has none, or a target does not fit it."""
        from specdebug.apps.mining.fitting import Unfit, fitted
        from specdebug.apps.mining.fix import fix_named, fix_of
        from specdebug.apps.mining.written import edits_by_version, toggle_text, wrapped
        from specdebug.campaign.trials.commits import top_of
        from specdebug.cli.new import not_ours, written

        assert self.repo is not None
        top = top_of(self.repo)
        fix = fix_of(top, fix_named(top, str(number)), lambda line: None)
        for each in fix.made:
            not_ours(each.source.name)
        fits: dict[Dist, Fitted] = {}
        if (dist := self._dist()) is not None:
            try:
                fits[dist] = fitted(dist, fix)
            except Unfit as error:
                raise SpecDebugError(f"{number} of {top} cannot be reverted in {dist}: {error}") from None
        file = _folder() / "toggles" / f"{number}.yaml"
        notes = [wrapped(moved) for one in fits.values() for moved in one.moved]
        text = toggle_text(fix, file, edits_by_version(fix, fits), (), notes)
        written(file, text.replace(f"pr: {fix.number}\n", f"pr: {number}\n", 1))
        note(f"{number}: {fix.title}, from {top}; its toggle is {file}")

    def _dist(self) -> Dist | None:
        """The release that the arms run on; None if they run on none, or on a tree of its own."""
        from specdebug.cli.mine import installed_dist

        target: str | None = getattr(self, "target", None)
        parsed = None if target is None else parse_target(target)
        if target is None or not isinstance(parsed, ReleasedEngine) or parsed.tree is not None:
            return None
        return installed_dist(target, "--target")


def _folder() -> Path:
    return own_folder() / "mined"
