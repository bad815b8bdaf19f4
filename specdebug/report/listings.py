"""Lists: scenarios, probe sites and packs, facts of an installation, settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specdebug.report.parts import Column, Line, Part, Report, Table, columns, lines
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.packs import ProbePack


def listing(command: str, parts: Iterable[Part], document: Any, exit_code: int = 0) -> Report:
    """A report of a command that looks something up."""
    return Report(command, command, "", exit_code, document, tuple(parts))


def scenario_list(scenarios: Sequence[Scenario]) -> Report:
    """One row a scenario: name, arms, description."""
    facts = [
        {"name": s.name, "path": str(s.path), "description": s.description, "arms": list(s.arms)} for s in scenarios
    ]
    heads = (Column("scenario", key=True), *columns("arms", "what it shows", prose=True))
    rows = [(s.path.stem, ", ".join(s.arms), " ".join(s.description.split())) for s in scenarios]
    return listing("scenarios list", [Table(heads, rows)], facts)


def probe_list(
    packs: Sequence[ProbePack],
    kinds: Mapping[str, Sequence[str]],
    live: Mapping[str, Sequence[str]],
    workers: Mapping[str, Sequence[str]],
) -> Report:
    """The packs, then every site with the ``kinds`` of its probes, the packs that switch it on (``live``) and the
    ``workers`` that pass it; where all do, it says so."""
    of_packs = (*columns("pack", "mode", key=True), Column("what it watches", prose=True))
    of_sites = (Column("site", key=True), *columns("kinds", "packs", "workers", prose=True))
    most = max(map(len, workers.values()), default=0)
    who = {name: "all" if len(those) == most else ", ".join(those) for name, those in workers.items()}
    sites = [(name, ", ".join(found), ", ".join(live[name]), who[name]) for name, found in kinds.items()]
    watched = [(pack.name, pack.mode, " ".join(pack.description.split())) for pack in packs]
    document = {
        "packs": [{"name": p.name, "description": p.description, "mode": p.mode} for p in packs],
        "sites": [
            {"site": name, "kinds": found, "packs": live[name], "workers": list(workers[name])}
            for name, found in kinds.items()
        ],
    }
    return listing("probes list", [Table(of_packs, watched), Table(of_sites, sites)], document)


def doctor_report(facts: Mapping[str, Any], problems: Sequence[str]) -> Report:
    """Names and values side by side, then the problems."""
    rows = [(name, ", ".join(map(str, told)) if isinstance(told, list) else str(told)) for name, told in facts.items()]
    table = Table((Column("", key=True), Column("", prose=True)), rows)
    document = {"facts": facts, "problems": problems}
    return listing("doctor", [table, *lines(f"problem: {one}" for one in problems)], document, int(bool(problems)))


def settings_list(
    settings: Iterable[tuple[str, str, str]], variable: str | None, document: Mapping[str, Any]
) -> Report:
    """Options that a configuration file sets: name, value and the place that sets it; then what a variable names."""
    heads = (Column("option", key=True), *columns("value", "from"))
    table = Table(heads, list(settings))
    none = Line("no configuration file: every option has its default")
    return listing("config", [none if document["path"] is None else table, *lines(filter(None, [variable]))], document)
