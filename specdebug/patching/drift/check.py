"""The check of one release: a row for every fix of our registry, and of the engine's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from specdebug.base.errors import ContentError, SpecDebugError, Where
from specdebug.patching.drift.dist import Dist
from specdebug.patching.drift.fit import EditProblem, Fit, fit
from specdebug.patching.drift.upstream import fit_entry, read_entries
from specdebug.patching.source import Patch
from specdebug.patching.toggles import OWN_ENGINE, Registry, Toggle

Status: TypeAlias = Literal["fits", "stale", "not-for-version"]
Owner: TypeAlias = Literal["ours", "upstream"]

UNDECIDED = 125


@dataclass(frozen=True)
class FixRow:
    """One fix, checked. ``registry``: our toggles, or the engine's own. ``why``: the reason for ``not-for-version``.

    ``places``: in the release, of the edits that can be made; ``problems``: the edits that cannot.
    """

    pr: int
    registry: Owner
    status: Status
    why: str = ""
    versions: str = ""
    places: tuple[Where, ...] = ()
    problems: tuple[EditProblem, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data. ``where`` and ``nearest`` are those of the first problem, or where the first edit lands."""
        near = next((problem.near for problem in self.problems if problem.near), None)
        landed = str(self.places[0]) if self.places and not self.problems else None
        return {name: getattr(self, name) for name in ("pr", "registry", "status", "versions", "why")} | {
            "where": str(near.where) if near else landed,
            "nearest": "\n".join(near.lines) if near else None,
            "places": [str(place) for place in self.places],
            "problems": [problem.to_dict() for problem in self.problems],
        }


@dataclass(frozen=True)
class DriftReport:
    """A release, checked."""

    dist: Dist
    rows: tuple[FixRow, ...]

    def count(self, registry: Owner, status: Status) -> int:
        """Return how many fixes of a registry ended so."""
        return sum(row.registry == registry and row.status == status for row in self.rows)

    @property
    def exit_code(self) -> int:
        """1 when a patch of ours is stale, 0 when all that are meant for this release fit, 125 when none is.

        What is stale in the engine's own registry is its keepers' to mend.
        """
        if self.count("ours", "stale"):
            return 1
        return 0 if self.count("ours", "fits") else UNDECIDED


def engines(registry: Registry) -> set[str]:
    """Engines that some toggle has patches for, this one among them."""
    return {OWN_ENGINE, *(engine for toggle in registry.all for engine in toggle.foreign)}


def check(dist: Dist, registry: Registry) -> DriftReport:
    """Match every patch of both registries against a release.

    Raises SpecDebugError if no toggle knows the engine and it has no registry of its own, a file of it is damaged, or
    two version ranges of one toggle hold the same release.
    """
    entries = read_entries(dist)
    if not entries and all(canonicalize_name(engine) != dist.name for engine in engines(registry)):
        known = ", ".join(sorted(engines(registry)))
        raise SpecDebugError(f"{dist.path} is {dist}: no toggle has patches for '{dist.name}'; known: {known}")
    rows = []
    for toggle in registry.all:
        if (found := patches_for(dist, toggle)) is None:
            rows.append(FixRow(toggle.pr, "ours", "not-for-version", why_none(dist, toggle)))
        else:
            rows.append(_judged(toggle.pr, "ours", fit(dist, found[1]), found[0]))
    rows += [_judged(entry.pr, "upstream", fit_entry(dist, entry)) for entry in entries]
    return DriftReport(dist, tuple(rows))


def patches_for(dist: Dist, toggle: Toggle) -> tuple[str, tuple[Patch, ...]] | None:
    """The version range of a toggle that holds a release, and its patches; None if none does.

    Raises ContentError if two do.
    """
    ranges = _ranges(dist, toggle)
    holding = [wanted for wanted in ranges if SpecifierSet(wanted, prereleases=True).contains(dist.version)]
    if len(holding) > 1:
        message = f"{dist} is in two version ranges, '{holding[0]}' and '{holding[1]}'; make them disjoint"
        raise ContentError(message, ranges[holding[1]][0].where)
    return (holding[0], ranges[holding[0]]) if holding else None


def why_none(dist: Dist, toggle: Toggle) -> str:
    """Why a toggle has no patches for a release."""
    ranges = _ranges(dist, toggle)
    return f"patches are for {' or '.join(ranges)}" if ranges else f"no patches for {dist.name}"


def _ranges(dist: Dist, toggle: Toggle) -> Mapping[str, tuple[Patch, ...]]:
    """Patches by version range, of whatever spelling of the engine's name; those of our own engine are for any."""
    if dist.name == OWN_ENGINE:
        return {"": toggle.patches} if toggle.patches else {}
    spelled = [ranges for engine, ranges in toggle.foreign.items() if canonicalize_name(engine) == dist.name]
    return {wanted: patches for ranges in spelled for wanted, patches in ranges.items()}


def _judged(pr: int, registry: Owner, found: Fit, versions: str = "") -> FixRow:
    status: Status = "stale" if found.problems else "fits"
    return FixRow(pr, registry, status, "", versions, found.places, found.problems)
