"""Tell which fixes exist in which attention plan.

Each plan has a planner of its own, in a module named after it; Triton's builds on FlashInfer's. A fix whose lines lie
in a planner, or that is noticed by a probe in one, can only be put to the test where that planner runs.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING

from specdebug.async_probe.gate import KINDS

if TYPE_CHECKING:
    from specdebug.async_probe.sites import Site
    from specdebug.toggles import Toggle

PLANNERS: dict[str, frozenset[str]] = {
    "flashinfer": frozenset({"flashinfer"}),
    "triton": frozenset({"flashinfer", "triton"}),
    "fa3": frozenset({"fa3"}),
}
"""By plan: the modules of ``specdebug.engine.attention`` that hold its planner's lines."""

_ATTENTION = "specdebug.engine.attention."
_FOLDER = "attention/"


def exists_in(toggle: Toggle, plan: str) -> bool:
    """Return whether a fix can be reverted and noticed under ``plan``."""
    names = {p.module.removeprefix(_ATTENTION) for p in toggle.patches if p.module.startswith(_ATTENTION)}
    if any(_in_planners(name) and name not in PLANNERS[plan] for name in names):
        return False
    return all(_noticed_in(signature, plan) for signature in toggle.detected_by.signatures)


def _noticed_in(signature: str, plan: str) -> bool:
    """Return whether the probes that a stated signature names, if it names any, are ones that this plan passes."""
    kind, _, pattern = signature.partition("@")
    if kind not in KINDS:
        return True
    files = {site.path for site in _sites() if site.kind == kind and fnmatchcase(site.name, pattern)}
    names = {file.removeprefix(_FOLDER).removesuffix(".py") for file in files}
    return not names or any(not _in_planners(name) or name in PLANNERS[plan] for name in names)


def _in_planners(name: str) -> bool:
    return any(name in modules for modules in PLANNERS.values())


@cache
def _sites() -> tuple[Site, ...]:
    from specdebug.scenario.library import engine_sites

    return tuple(engine_sites())
