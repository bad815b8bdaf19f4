"""Tell which fixes exist in which attention plan.

A plan's record says which modules hold its planner's lines. A fix whose lines lie in a planner, or that is noticed by a
probe in one, can only be put to the test where that planner runs.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING

from specdebug.async_probe.kinds import KINDS
from specdebug.base.attention_plans import PLANS

if TYPE_CHECKING:
    from specdebug.async_probe.sites import Site
    from specdebug.patching.toggles import Toggle

_ENGINE = "specdebug.engine."


def exists_in(toggle: Toggle, plan: str) -> bool:
    """Return True if a fix can be reverted and noticed under ``plan``."""
    if any(_only_elsewhere(patch.module, plan) for patch in toggle.patches):
        return False
    return all(_noticed_in(signature, plan) for signature in toggle.detected_by.signatures)


def _noticed_in(signature: str, plan: str) -> bool:
    """Return True if this plan passes a probe that the signature names, or if it names none."""
    kind, _, pattern = signature.partition("@")
    if kind not in KINDS:
        return True
    sites = [site for site in _sites() if site.kind == kind and fnmatchcase(site.name, pattern)]
    modules = {_ENGINE + site.path.removesuffix(".py").replace("/", ".") for site in sites}
    return not modules or not all(_only_elsewhere(module, plan) for module in modules)


def _only_elsewhere(module: str, plan: str) -> bool:
    """Return True if the module belongs to other plans' planners and not to this one's."""
    return module not in PLANS[plan].modules and any(module in each.modules for each in PLANS.values())


@cache
def _sites() -> tuple[Site, ...]:
    from specdebug.scenario.library import engine_sites

    return tuple(engine_sites())
