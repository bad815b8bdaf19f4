"""``specdebug toggles siblings``: where else an engine has the bug that a fix mended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.base.errors import SpecDebugError
from specdebug.cli import options as opt
from specdebug.cli.listings import ListOptions
from specdebug.cli.mine import installed_dist
from specdebug.patching.drift import open_dist
from specdebug.patching.drift.check import engines
from specdebug.patching.source import Patch
from specdebug.targets.installs.fit import dist_of
from specdebug.targets.installs.store import look, store_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdebug.patching.drift.dist import Dist
    from specdebug.patching.reversal import Reversal


class ToggleSiblings(ListOptions):
    """Find other places of an engine that look like the code before a fix.

    A function is likened to that code by its syntax tree: names of the same family, calls that what has the fix makes,
    the same operands without what the fix put among them, a statement that is the same after renaming. At most ten are
    told, the likest first, each with its reasons: places to read, not verdicts. Nothing of the engine is imported.
    """

    example = "toggles siblings 26972 --against sglang==0.5.23"
    number: str = opt.argument("The number of the fix, or with --repo a commit.", default=..., metavar="PR")
    against: str = opt.option(
        "Look in this engine: an installed release, a wheel, an sdist or a source tree.",
        default=...,
        metavar="sglang==VERSION|DIST",
    )
    repo: Path | None = opt.option("Take the fix from this checkout, where no toggle has its number.", metavar="DIR")
    version: str | None = opt.option("Take a source tree for this version, if it does not state its own.")

    def run(self) -> int:
        from specdebug.apps.mining.siblings import siblings
        from specdebug.apps.mining.sought import places, sought
        from specdebug.report.toggles import siblings_report

        known = engines(self.library().registry)
        path = Path(self.against)
        is_file = path.exists()
        dist = open_dist(path, known, self.version) if is_file else installed_dist(self.against, "--against")
        views, patches = self._of_checkout(dist) if self.repo else self._of_registry(dist)
        if not views:
            raise SpecDebugError(
                f"{self.number}: its patches fit neither {dist} nor an installed release of its engine"
            )
        found = siblings(dist, sought(views, dist.name), places(dist, patches))
        return self.answer(siblings_report(self.number, str(dist), found))

    def _of_registry(self, dist: Dist) -> tuple[Sequence[Reversal], Sequence[Patch]]:
        """The fix as our engine, this one and installed releases have it, and the patches that take it out of this."""
        from specdebug.apps.mining.sought import fitting, views_of

        toggle = self.library().registry.find(self.number)
        installed, _ = look(store_folder(None))
        others = [dist_of(each) for each in installed if each.engine in toggle.foreign]
        same = {(each.name, each.version): each for each in [*others, dist]}
        return views_of(toggle, list(same.values())), () if dist.name in toggle.mends else fitting(dist, toggle)

    def _of_checkout(self, dist: Dist) -> tuple[Sequence[Reversal], Sequence[Patch]]:
        from specdebug.apps.mining.fitting import Unfit, fitted
        from specdebug.apps.mining.fix import fix_named, fix_of
        from specdebug.campaign.trials.commits import top_of

        assert self.repo is not None
        top = top_of(self.repo)
        fix = fix_of(top, fix_named(top, self.number), lambda line: None)
        try:
            edits = fitted(dist, fix).edits
        except Unfit:
            return fix.made, ()
        return fix.made, [Patch.of(str(fix.number), target, *pairs) for target, pairs in edits.items()]
