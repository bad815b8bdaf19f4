"""Tables of scenarios, probe sites and packs, and facts of an installation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from specdebug.report.tables import Column, Listing, line
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.packs import ProbePack


def scenario_table(scenarios: Iterable[Scenario]) -> Listing:
    """One row a scenario: name, arms, description."""
    columns = (Column("scenario", key=True), Column("arms", prose=True), Column("what it shows", prose=True))
    return Listing(columns, [(s.path.stem, ", ".join(s.arms), " ".join(s.description.split())) for s in scenarios])


def probe_tables(
    packs: Iterable[ProbePack],
    kinds: Mapping[str, Sequence[str]],
    live: Mapping[str, Sequence[str]],
    workers: Mapping[str, Sequence[str]],
) -> RenderableType:
    """The packs, then every site with the ``kinds`` of its probes, the packs that switch it on (``live``) and the
    ``workers`` that pass it; where all do, it says so."""
    of_packs = (Column("pack", key=True), Column("mode", key=True), Column("what it watches", prose=True))
    of_sites = (Column("site", key=True), *(Column(name, prose=True) for name in ("kinds", "packs", "workers")))
    most = max(map(len, workers.values()), default=0)
    who = {name: "all" if len(those) == most else ", ".join(those) for name, those in workers.items()}
    sites = [(name, ", ".join(found), ", ".join(live[name]), who[name]) for name, found in kinds.items()]
    return Group(
        Listing(of_packs, [(pack.name, pack.mode, " ".join(pack.description.split())) for pack in packs]),
        Text(),
        Listing(of_sites, sites),
    )


def facts_table(facts: Mapping[str, Any], problems: Iterable[str]) -> RenderableType:
    """Names and values side by side, then the problems."""
    columns = (Column("", key=True), Column("", prose=True))
    rows = [
        (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)) for name, value in facts.items()
    ]
    return Group(Listing(columns, rows), *(line(f"problem: {problem}") for problem in problems))


def settings_table(settings: Iterable[tuple[str, str, str]]) -> RenderableType:
    """Options that a configuration file sets: name, value and the place that sets it."""
    return Listing((Column("option", key=True), Column("value"), Column("from")), settings)
