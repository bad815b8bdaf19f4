"""The state of a hunt: of our own code, what it draws on, and the engine that is hunted."""

from __future__ import annotations

from collections.abc import Sequence

from specdebug.apps.hunt.draw import ARM, drawn
from specdebug.base.assets import CHECKPOINTS
from specdebug.campaign.trials.arm_state import engine_state
from specdebug.campaign.trials.state import digest_of, folder_digest, own_state
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.targets.options import options_of
from specdebug.targets.settings import TargetChoice, engine_of


def hunt_state(target: TargetChoice, reverts: Sequence[int], library: Library) -> dict[str, str]:
    """Return the state that scenarios of a hunt are judged in. Raises ContentError, or SelectionError for a fix that
    cannot be reverted."""
    engine = engine_of(target)
    mends = (toggle for toggle in library.registry.all if engine in toggle.mends)
    fixes = [toggle.path.read_text(encoding="utf-8") for toggle in (*library.toggles(reverts, target), *mends)]
    packs = library.packs(Scenario.from_dict(drawn(0, 0, options_of(target))).probes_of(ARM))
    return {
        "fixes": f"#{digest_of(*fixes)}",
        "probe packs": f"#{digest_of(*map(repr, packs))}",
        f"checkpoints {CHECKPOINTS}": folder_digest(CHECKPOINTS),
        **own_state(),
        **engine_state(target),
    }
