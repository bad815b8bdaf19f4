"""Fixes whose bug nothing can reach in an engine: what guards it is looked for in the release that is installed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from specdebug.patching.toggles import Toggle
from specdebug.targets.installs.fit import place_of
from specdebug.targets.installs.store import Installed


@dataclass(frozen=True)
class LatentCheck:
    """One fix. ``guard``: the place of the guard, ``file:line`` in the engine; None where it is gone, and ``problem``
    says how."""

    toggle: Toggle
    guard: str | None
    why: str
    problem: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "pr": self.toggle.pr,
            "title": self.toggle.title,
            "latent": self.guard is not None,
            "guard": self.guard,
            "why": self.why,
            "live": False,
            "untested": False,
            "problems": [self.problem] if self.problem else [],
        }


def check_latent(here: Installed, toggles: Iterable[Toggle]) -> list[LatentCheck]:
    """Look for the guard of each fix that is latent in a release. Raises ConfigError where it cannot be read."""
    checks = []
    for toggle in toggles:
        if (guard := toggle.latent_in.get(here.engine)) is None:
            continue
        place, what = place_of(here, guard.patch)
        gone = f"its guard is not in {here.release}, so it may be live, and no scenario shows it: {what}"
        checks.append(LatentCheck(toggle, place, guard.why, "" if place else gone))
    return checks
