"""Arms that are not run on their target: the scenario says so, or a fix that they revert is none of its engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from specdebug.base.errors import SpecDebugError, Where
from specdebug.patching.toggles import SelectionError, Toggle
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.target_ranges import environment_of, version_of
from specdebug.targets.settings import ReleasedEngine, TargetChoice

if TYPE_CHECKING:
    from specdebug.campaign.loops.replay import RunContent


class NotOnTarget(SpecDebugError):
    """Nothing that is asked for is run on the target."""


@dataclass(frozen=True)
class LeftOut:
    """An arm that is not run, and why, in words."""

    scenario: Scenario
    arm: str
    why: str

    @property
    def target(self) -> TargetChoice:
        return self.scenario.target_of(self.arm)

    @property
    def where(self) -> Where:
        """The place of the arm in its file."""
        return self.scenario.where_key("arms", self.arm)

    @property
    def text(self) -> str:
        """For a person, without the arm's name."""
        return f"not run on {self.target}: {self.why}"

    def to_dict(self) -> dict[str, Any]:
        return {"arm": self.arm, "target": str(self.target), "why": self.why}


def left_out(scenario: Scenario, arms: Sequence[str], library: RunContent) -> tuple[LeftOut, ...]:
    """Of some arms those that are not run on their target."""
    whys = ((arm, scenario.why_not(arm) or _no_such_fix(scenario, arm, library)) for arm in arms)
    return tuple(LeftOut(scenario, arm, why) for arm, why in whys if why is not None)


def refusal(arms: Sequence[LeftOut]) -> NotOnTarget:
    """The error where none of what was asked for is run: each reason once, at the place of its first arm."""
    first: dict[tuple[str, str], LeftOut] = {}
    for each in arms:
        first.setdefault((str(each.scenario.path), each.text), each)
    return NotOnTarget("; ".join(f"{each.where}: {each.text}" for each in first.values()))


def _no_such_fix(scenario: Scenario, arm: str, library: RunContent) -> str | None:
    """Why an arm's own reverts cannot be made on its target, if they cannot."""
    target = scenario.target_of(arm)
    if not isinstance(target, ReleasedEngine):
        return None
    try:
        toggles = library.toggles(scenario.arms[arm].revert, target)
    except SelectionError as error:
        return str(error)
    there = environment_of(target)
    versions = (version_of(target),) if there is None else there.versions
    for toggle in toggles:
        if not any(version is None or _has_patches(toggle, target.kind, version) for version in versions):
            return f"{toggle.pr} has patches for {target.kind} {' or '.join(toggle.foreign[target.kind])}"
    return None


def _has_patches(toggle: Toggle, engine: str, version: str) -> bool:
    return any(SpecifierSet(held, prereleases=True).contains(version) for held in toggle.foreign[engine])
