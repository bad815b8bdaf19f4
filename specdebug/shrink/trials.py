"""Trials of what is left of a scenario, run warm: see ``specdebug.minimise.space.Oracle``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdebug.errors import CannotRunHere
from specdebug.loops.replay import ArmRun
from specdebug.loops.warm import ArmAtFault, WarmPool
from specdebug.minimise import Seen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdebug.scenario.grammar import Scenario
    from specdebug.scenario.packs import ProbePack
    from specdebug.shrink.space import ScenarioSpace
    from specdebug.toggles import Toggle

_GROUP_KIND = "accept-drop@"


class WarmOracle:
    """Runs the only arm of written-out scenarios.

    Args:
        pool: runs them; made for the whole.
        packs: the arm's probe packs.
        toggles: the fixes it reverts.
    """

    def __init__(
        self, pool: WarmPool, space: ScenarioSpace, packs: Sequence[ProbePack], toggles: Sequence[Toggle]
    ) -> None:
        self._pool = pool
        self._space = space
        self._packs = tuple(packs)
        self._toggles = tuple(toggles)
        self._ended_once = False

    @property
    def capacity(self) -> int:
        """How many trials may run at a time."""
        return self._pool.capacity

    def start(self, number: int, candidate: Scenario, seed: int) -> None:
        """Begin a trial."""
        self._pool.start(ArmRun(str(number), candidate, self._space.arm, seed, self._packs, self._toggles))

    def wait(self) -> tuple[int, Seen]:
        """The next trial to end. Raises CannotRunHere when this machine cannot run the scenario."""
        try:
            result = self._pool.wait()
        except ArmAtFault as fault:
            if not self._ended_once:
                raise
            return int(fault.run.key), Seen(None, 0.0)  # wrong only with what is left: not the failure
        outcome = result.outcome
        if outcome.unavailable:
            raise CannotRunHere(f"{result.run.scenario.path}: {'; '.join(outcome.reasons)}")
        self._ended_once = True
        signature = outcome.signature if outcome.verdict == "fail" else None
        return int(result.run.key), Seen(self._named_before(signature), outcome.metrics.wall_s)

    def _named_before(self, signature: str | None) -> str | None:
        """A signature that names a group names the one it was written out from."""
        if signature is None or not signature.startswith(_GROUP_KIND):
            return signature
        group = signature.removeprefix(_GROUP_KIND)
        return _GROUP_KIND + self._space.origin.get(group, group)
