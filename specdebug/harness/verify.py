"""The matrix: every registered fix, applied and reverted, seed by seed.

A toggle is **live** when its scenario is silent with the fix applied and fails with the stated signature
with the fix reverted. Otherwise it is **rotten**: a detector that cannot see its bug, or sees one where
there is none. So the registry is a set of mutation tests of everything else here.

The arm used is the scenario's own arm that reverts exactly this fix (without that revert for the applied
side), else its first one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from specdebug.errors import SpecDebugError
from specdebug.harness.replay import ArmResult, ArmRun, Progress, run_arms
from specdebug.harness.scenario_model import Arm, Scenario
from specdebug.targets.pool import WorkerPool

if TYPE_CHECKING:
    from specdebug.harness.probe_packs import ProbePack
    from specdebug.toggles import Toggle


class Library(Protocol):
    """Where scenarios and packs come from."""

    def scenario(self, name: str) -> Scenario: ...

    def packs(self, names: Sequence[str]) -> tuple[ProbePack, ...]: ...


@dataclass(frozen=True)
class ToggleCheck:
    """What the matrix says of one toggle; ``problems`` is empty when it is live."""

    toggle: Toggle
    applied: tuple[ArmResult, ...]
    reverted: tuple[ArmResult, ...]

    @property
    def silent(self) -> int:
        """Seeds on which the applied side passed."""
        return sum(result.outcome.verdict == "pass" for result in self.applied)

    @property
    def detected(self) -> int:
        """Seeds on which the reverted side failed as stated."""
        return sum(_as_stated(self.toggle, result) for result in self.reverted)

    @property
    def problems(self) -> tuple[str, ...]:
        """Each deviation in one line."""
        said = []
        for result in self.applied:
            outcome = result.outcome
            if outcome.verdict != "pass":
                what = outcome.signature or outcome.detail
                said.append(f"applied, seed {result.run.seed}: {outcome.verdict}, {what}")
        for result in self.reverted:
            outcome = result.outcome
            if not _as_stated(self.toggle, result):
                what = outcome.signature or outcome.detail or "nothing was found"
                said.append(
                    f"reverted, seed {result.run.seed}: {outcome.verdict}, {what}; "
                    f"stated is {' or '.join(self.toggle.detected_by.signatures)}"
                )
        return tuple(said)

    @property
    def live(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {
            "pr": self.toggle.pr,
            "title": self.toggle.title,
            "scenario": self.toggle.detected_by.scenario,
            "signatures": list(self.toggle.detected_by.signatures),
            "live": self.live,
            "seeds": len(self.applied),
            "silent": self.silent,
            "detected": self.detected,
            "problems": list(self.problems),
        }


def _as_stated(toggle: Toggle, result: ArmResult) -> bool:
    outcome = result.outcome
    return outcome.verdict == "fail" and toggle.detected_by.recognises(outcome.signature or "")


def plan_matrix(library: Library, toggles: Sequence[Toggle], seeds: int) -> list[ArmRun]:
    """Every run of the matrix. Applied runs that several toggles share are planned once."""
    runs: dict[str, ArmRun] = {}
    for toggle in toggles:
        scenario, base = _base(library, toggle)
        packs = library.packs(scenario.probes_of(base.name))
        for offset in range(seeds):
            seed = scenario.seed + offset
            for chosen in ((), (toggle,)):
                key = _key(scenario, base, seed, chosen)
                runs[key] = ArmRun(key, scenario, base.name, seed, packs, chosen)
    return list(runs.values())


def verify(
    pool: WorkerPool,
    library: Library,
    toggles: Sequence[Toggle],
    seeds: int,
    progress: Progress | None = None,
) -> list[ToggleCheck]:
    """Run the matrix and judge each toggle. A KeyboardInterrupt passes through."""
    if not toggles:
        raise SpecDebugError("no toggles to verify; `specdebug toggles list` shows what is registered")
    results = {r.run.key: r for r in run_arms(pool, plan_matrix(library, toggles, seeds), progress)}
    checks = []
    for toggle in toggles:
        scenario, base = _base(library, toggle)
        sides: tuple[list[ArmResult], list[ArmResult]] = ([], [])
        for offset in range(seeds):
            for side, chosen in zip(sides, ((), (toggle,)), strict=True):
                side.append(results[_key(scenario, base, scenario.seed + offset, chosen)])
        checks.append(ToggleCheck(toggle, tuple(sides[0]), tuple(sides[1])))
    return checks


def _base(library: Library, toggle: Toggle) -> tuple[Scenario, Arm]:
    """The scenario that detects a toggle, and the arm to run with and without it."""
    scenario = library.scenario(toggle.detected_by.scenario)
    own = [arm for arm in scenario.arms.values() if arm.revert == (toggle.pr,)]
    base = dataclasses.replace((own or list(scenario.arms.values()))[0], revert=())
    return dataclasses.replace(scenario, arms={**scenario.arms, base.name: base}), base


def _key(scenario: Scenario, base: Arm, seed: int, chosen: Sequence[Toggle]) -> str:
    what = f"{chosen[0].pr} reverted" if chosen else f"{base.name} applied"
    return f"{scenario.name}, {what}, seed {seed}"
