"""Make the first scenario of each failure small, by the search of ``specdebug minimise``."""

from __future__ import annotations

import contextlib
from pathlib import Path

from specdebug import __version__
from specdebug.apps.hunt.draw import ARM
from specdebug.apps.hunt.hunting import Hunt
from specdebug.apps.hunt.record import Judged
from specdebug.base.trial import trial_seed
from specdebug.campaign.shrink.file import scenario_text
from specdebug.campaign.shrink.space import ScenarioSpace
from specdebug.campaign.shrink.trials import ShrunkSource
from specdebug.campaign.trials.campaign import Campaign
from specdebug.campaign.trials.journal import Journal
from specdebug.search.minimise import Minimiser, MinimiseWatcher

CONFIDENCE = 0.9


def shrunk_path(hunt: Hunt, one: Judged) -> Path:
    """Where the small scenario of a failure goes."""
    return hunt.record.folder / f"{one.number:05d}-small.yaml"


def shrink(hunt: Hunt, one: Judged, max_trials: int) -> Path | None:
    """Write a smaller scenario that fails as ``one`` does, in so many trials; None where none failed again.

    Trials are kept beside it, so that a hunt that goes on goes on with them. Raises as ``specdebug minimise`` does.
    """
    runner = hunt.runner
    scenario = runner.scenario(one.number).on(runner.target)
    toggles = runner.library.toggles(runner.reverts, runner.target)
    space = ScenarioSpace(scenario, ARM, tuple(toggle.pr for toggle in toggles))
    source = ShrunkSource(space, runner.library.packs(space.start.probes), toggles, runner.jobs)
    path = hunt.record.folder / f"{one.number:05d}-small.sqlite"
    about = f"making scenario {one.number} small, which fails with {one.signature}"
    identity = f"{source.question} {one.signature}"
    with contextlib.closing(source), Journal(path, identity, about, state=source.state()) as journal:
        search = Minimiser(
            space,
            Campaign(source, journal, runner.seed, max_trials),
            source.leave,
            seeds=lambda number: trial_seed(runner.seed, number),
            max_trials=max_trials,
            confidence=CONFIDENCE,
            pattern=one.signature,
        )
        summary = search.run(MinimiseWatcher())
    if not summary.seeds:
        return None
    header = (
        f"Fails with {one.signature} on {runner.target}.",
        "",
        f"Made by specdebug {__version__}, specdebug hunt, out of scenario {one.number} of seed {runner.seed}.",
    )
    text = scenario_text(summary.smallest, f"{scenario.name}-small", summary.seeds[0], one.signature, header)
    made = shrunk_path(hunt, one)
    hunt.record.write(made.name, text)
    return made
