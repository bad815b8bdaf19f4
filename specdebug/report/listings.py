"""Lists: scenarios, probe sites and packs, facts of an installation, settings, engines, and the findings of triage."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.report.parts import Column, Line, Part, Report, Table, columns, lines, plain, table
from specdebug.report.words import counted, some

if TYPE_CHECKING:  # a list needs none of the others' modules
    from specdebug.apps.triage import CandidateFix, Tried
    from specdebug.apps.twins.abilities import AbilityRow
    from specdebug.base.configuration import Configuration
    from specdebug.campaign.loops.replays import EngineChecked
    from specdebug.logs.findings import Finding
    from specdebug.logs.scan import Scan
    from specdebug.scenario.grammar import Scenario
    from specdebug.scenario.packs import ProbePack
    from specdebug.targets.installs.fit import FitPart
    from specdebug.targets.installs.release import Recipe
    from specdebug.targets.installs.store import Damaged, Installed

MAX_FINDINGS = 8
"""Findings of a log that are told."""


def listing(command: str, parts: Iterable[Part], document: Any, exit_code: int = 0) -> Report:
    """A report of a command that looks something up."""
    return Report(command, command, "", exit_code, document, tuple(parts))


def scenario_list(scenarios: Sequence[Scenario]) -> Report:
    """One row a scenario: name, arms, description."""
    heads = (
        Column("scenario", "key", lambda one: one.path.stem),
        Column("arms", "prose", lambda one: ", ".join(one.arms)),
        Column("what it shows", "prose", lambda one: " ".join(one.description.split())),
    )
    facts = [
        {"name": one.name, "path": str(one.path), "description": one.description, "arms": list(one.arms)}
        for one in scenarios
    ]
    return listing("scenarios list", [table(scenarios, *heads)], facts)


def probe_list(
    packs: Sequence[ProbePack],
    kinds: Mapping[str, Sequence[str]],
    live: Mapping[str, Sequence[str]],
    workers: Mapping[str, Sequence[str]],
) -> Report:
    """The packs, then every site with the ``kinds`` of its probes, the packs that switch it on (``live``) and the
    ``workers`` that pass it; where all do, it says so."""
    most = max(map(len, workers.values()), default=0)
    of_packs = (
        Column("pack", "key", lambda pack: pack.name),
        Column("mode", "key", lambda pack: pack.mode),
        Column("what it watches", "prose", lambda pack: " ".join(pack.description.split())),
    )
    of_sites = (
        Column("site", "key", lambda name: name),
        Column("kinds", "prose", lambda name: ", ".join(kinds[name])),
        Column("packs", "prose", lambda name: ", ".join(live[name])),
        Column("workers", "prose", lambda name: "all" if len(workers[name]) == most else ", ".join(workers[name])),
    )
    document = {
        "packs": [plain(pack, "name description mode") for pack in packs],
        "sites": [
            {"site": name, "kinds": found, "packs": live[name], "workers": list(workers[name])}
            for name, found in kinds.items()
        ],
    }
    return listing("probes list", [table(packs, *of_packs), table(kinds, *of_sites)], document)


def doctor_report(facts: Mapping[str, Any], problems: Sequence[str]) -> Report:
    """Names and values side by side, then the problems."""
    rows = [(name, ", ".join(map(str, told)) if isinstance(told, list) else str(told)) for name, told in facts.items()]
    shown = Table((Column("", "key"), Column("", "prose")), rows)
    document = {"facts": facts, "problems": problems}
    return listing("doctor", [shown, *lines(f"problem: {one}" for one in problems)], document, int(bool(problems)))


def settings_list(found: Configuration, variable: str, named: str | None) -> Report:
    """Options that a configuration file sets: name, value and the place that sets it; then what a variable names."""
    settings = {name.replace("_", "-"): each for name, each in sorted(found.settings.items())}
    values = {
        name: [str(one) for one in each.value] if isinstance(each.value, list) else each.value
        for name, each in settings.items()
    }
    texts = {name: ", ".join(value) if isinstance(value, list) else str(value) for name, value in values.items()}
    document = {
        "path": None if found.path is None else str(found.path),
        "settings": {name: {"value": values[name], "line": each.where.line} for name, each in settings.items()},
        variable: named,
    }
    none = Line("no configuration file: every option has its default")
    rows = [(name, texts[name], str(each.where)) for name, each in settings.items()]
    listed = Table((Column("option", "key"), *columns("value", "from")), rows)
    said = lines([f"{variable}={named}"] if named else [])
    return listing("config", [none if found.path is None else listed, *said], document)


def engines_list(
    store: Path, there: Sequence[Installed], damaged: Sequence[Damaged], recipes: Sequence[Recipe]
) -> Report:
    """List the environments that are installed, then the releases that can be."""
    heads = (*columns("release", "for", kind="key"), *columns("state", "Python", kind="prose"))
    rows = [(str(each.release), each.device, _state(each), each.python) for each in there]
    rows += [(each.folder.name, "?", f"damaged: {each.error}", "?") for each in damaged]
    offered = (
        Column("to install", "key", lambda recipe: str(recipe.release)),
        Column("for", "key", lambda recipe: recipe.device),
        Column("what it can do here", "prose", lambda recipe: recipe.says or "-"),
        Column("on Python", of=lambda recipe: ", ".join(recipe.pythons)),
    )
    head = [Table(heads, rows)] if rows else [Line("nothing is installed"), Line("")]
    document = {
        "store": str(store),
        "installed": [
            {
                "release": str(each.release),
                **plain(each, "device python"),
                "own": not each.ours,
                **plain(each, "like complete gone packages checked"),
                "folder": str(each.folder),
            }
            for each in there
        ],
        "damaged": [{"folder": str(each.folder), "why": str(each.error)} for each in damaged],
        "recipes": [{"release": str(each.release), **plain(each, "device pythons says left_out")} for each in recipes],
    }
    return listing("engines list", [Line(f"in {store}"), *head, table(recipes, *offered)], document)


def abilities_list(known: Sequence[tuple[Installed, Mapping[str, Sequence[AbilityRow]]]]) -> Report:
    """What was measured of each environment, by scenario: which relations hold, which are broken, and why others were
    not compared."""
    heads = (
        Column("scenario", "key", lambda row: row.scenario),
        Column("drafts by", "key", lambda row: row.algorithm),
        Column("model", "key", lambda row: row.architecture),
        Column("on", of=lambda row: row.day),
        Column("pass", "prose", lambda row: _relations(row, "pass")),
        Column("fail", "prose", lambda row: _relations(row, "fail")),
        Column("not compared", "prose", lambda row: _relations(row, "not compared") + _relations(row, "not run")),
    )
    parts: list[Part] = []
    for here, by_runner in known:
        for runs, rows in by_runner.items():
            title = f"{runs}=={here.version} for {here.device}"
            parts += [table(rows, *heads, title=title), *lines(_reasons(rows), "dim"), Line("")]
        if not by_runner:
            parts.append(Line(f"{here.release}: not measured; specdebug engines measure {here.release} does it"))
    document = [
        {"target": f"{runs}=={here.version}", "device": here.device, "rows": [asdict(row) for row in rows]}
        for here, by_runner in known
        for runs, rows in by_runner.items()
    ]
    return listing("engines list", parts or [Line("nothing is installed")], document)


def _relations(row: AbilityRow, verdict: str) -> str:
    """The relations of a verdict; a broken one that its scenario expects to be so has a mark."""
    if verdict == "not run":
        return "all: not run here" if row.of("not run") else ""
    return ", ".join(f"{each.relation}{' (known)' if each.expected else ''}" for each in row.of(verdict))


def _reasons(rows: Sequence[AbilityRow]) -> Iterator[str]:
    """Why something failed, or was not compared: each reason once, with what it is of."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for cell in row.cells:
            of = row.scenario if cell.verdict == "not run" else f"{row.scenario} {cell.relation}"
            if cell.why and of not in found.setdefault(cell.why, []):
                found[cell.why].append(of)
    for why, cells in found.items():
        yield f"{some(cells, 4)}: {why}"


def ability_line(row: AbilityRow) -> str:
    """One row that was just measured."""
    counts = {name: len(row.of(name)) for name in ("pass", "fail", "not compared", "not run")}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    broken = "".join(f"\n  {each.signature}: {each.why}" for each in row.of("fail"))
    return f"{row.scenario} ({row.algorithm}, {row.architecture}): {told}{broken}"


def _state(each: Installed) -> str:
    if each.gone:
        return f"{each.gone}; install it again"
    if not each.complete:
        return f"not complete ({len(each.done)} steps done)"
    if not each.checked:
        return "not checked"
    verdicts = {name: value for name, value in each.checked.items() if name != "accept_length"}
    if set(verdicts.values()) == {"pass"}:
        mean = each.checked.get("accept_length")
        return "serves" + (f", accept length {mean:.2f}" if isinstance(mean, float) else "")
    return ", ".join(f"{name}: {verdict}" for name, verdict in verdicts.items())


def fit_lines(there: Installed, parts: Sequence[FitPart]) -> list[str]:
    """Say which parts of ours fit a release, in one line, and a line for each part that does not."""
    counts = []
    for kind, noun in ((False, "look"), (True, "stand-in")):
        if some := [each for each in parts if each.stand_in is kind]:
            counts.append(f"{sum(not each.lost for each in some)} of {counted(len(some), noun)}")
    lost = [f"  lost: {each.what}: {why}" for each in parts for why in each.lost]
    return [f"{' and '.join(counts)} fit {there.release}", *lost]


def check_lines(checked: EngineChecked) -> list[str]:
    """A line for each arm of a check, and what the release rests on here."""
    told = []
    for result in checked.replay.results:
        outcome = result.outcome
        mean = outcome.metrics.accept_mean
        more = f", accept length {mean:.2f}" if result.run.arm == "drafts" and mean is not None else ""
        failed = "" if outcome.verdict == "pass" else f": {outcome.detail or '; '.join(outcome.reasons)}"
        tokens = sum(len(request.output_ids) for request in outcome.requests)
        told.append(f"{result.run.arm}: {outcome.verdict}, {tokens} tokens{more}{failed}")
    notes = dict.fromkeys(note for result in checked.replay.results for note in result.outcome.notes)
    return [*told, *(f"  {note}" for note in notes)]


def triage_report(
    log: str,
    name: str,
    found: Scan,
    best: Sequence[CandidateFix],
    commands: Sequence[str],
    tried: Sequence[Tried],
    exit_code: int,
) -> Report:
    """The signature, other findings, the candidates with their reasons, the commands to run next. ``name``: the log's,
    fit to be shown."""
    main = found.main
    summary = f"{name}: no failure found in {found.lines} lines"
    if main is not None:
        means = "" if main.signature.startswith(main.means) else f" ({main.means})"
        summary = f"{name}: {main.signature}{means}"
    parts = [Line(summary, "" if main is None else "fail", fold=False), *_found(name, found, main, best)]
    parts += [Line("to run next:"), *lines((f"  {command}" for command in commands), fold=False)]
    if tried:
        parts.append(Line("tried:"))
    for one in tried:
        signature = f" ({one.outcome.signature})" if one.outcome.signature else ""
        parts.append(Line(f"  {one.candidate.toggle.pr}: {one.verdict}{signature}", fold=False))
    document = {
        "log": log,
        "lines": found.lines,
        "bytes": found.size,
        "signature": None if main is None else main.signature,
        "findings": [finding.to_dict() for finding in found.ranked()],
        "facts": found.facts.to_dict(),
        "candidates": [
            {
                **plain(one.toggle, "pr title"),
                "scenario": one.toggle.detected_by.scenario,
                **plain(one, "arm points exact reasons"),
            }
            for one in best
        ],
        "commands": list(commands),
        "tried": [one.to_dict() for one in tried],
    }
    return Report("triage", name, summary, exit_code, document, parts)


def _found(name: str, found: Scan, main: Finding | None, best: Sequence[CandidateFix]) -> Iterator[Line]:
    from specdebug.apps.triage import engine_of

    def told(finding: Finding, *, named: bool = True) -> Line:
        times = f", {finding.count} times" if finding.count > 1 else ""
        what = f"{finding.signature}  " if named else ""
        return Line(f"  {what}{name}:{finding.line}{times}: {finding.text}", fold=False)

    others = [finding for finding in found.ranked() if finding is not main]
    if main is None:
        if others:
            yield Line("passed over, for it was tried again or what came later is sound:")
            yield from map(told, others[:MAX_FINDINGS])
        yield Line("what went wrong may stand in another log (the server's, beside the test's), or further up")
        return
    yield told(main, named=False)
    if others:
        yield Line("also:")
        yield from map(told, others[:MAX_FINDINGS])
    if len(others) > MAX_FINDINGS:
        yield Line(f"  and {len(others) - MAX_FINDINGS} more", "dim")
    if facts := {key: value for key, value in found.facts.to_dict().items() if value not in (None, [], {})}:
        said = ", ".join(f"{key.replace('_', ' ')} {_fact(key, value)}" for key, value in facts.items())
        yield Line(f"the log says: {said}", "dim", fold=False)
    unknown = "" if engine_of(found) else ", nor to the engine that wrote it"
    yield Line("candidates:" if best else f"nothing in the log points to a known fix{unknown}")
    for rank, candidate in enumerate(best, start=1):
        yield Line(f"  {rank}. {candidate.toggle.pr} {candidate.toggle.title}", fold=False)
        yield from lines((f"       {reason}" for reason in candidate.reasons), "dim", fold=False)


def _fact(key: str, value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"--{name.replace('_', '-')} {given}" for name, given in value.items())
    if isinstance(value, list):
        return shlex.join(value) if key == "test" else ", ".join(map(str, value))
    return str(value)
