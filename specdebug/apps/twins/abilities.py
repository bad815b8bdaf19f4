"""What an engine's algorithms can, as it was measured: scenarios served on it by every relation. The answers are kept
beside its environment, a file for each of its model runners."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specdebug import __version__
from specdebug.apps.twins.plan import DEFAULT, plan_twins
from specdebug.apps.twins.run import TwinResult, TwinRunner
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import ContentError, SpecDebugError, one_line
from specdebug.base.schema import Item
from specdebug.campaign.loops.replay import Choices, RunContent
from specdebug.scenario.grammar import Scenario
from specdebug.targets.installed import config_of
from specdebug.targets.installs.store import Installed
from specdebug.targets.options import options_of
from specdebug.targets.settings import ReleasedEngine
from specdebug.workers.records import Record, RecordError

_MAX_BYTES = 16 << 20
VERDICTS = ("pass", "fail", "not compared", "not run")


@dataclass(frozen=True)
class AbilityCell:
    """What one relation came to. ``signature``: of a failure. ``why``: what failed, or why nothing was compared.
    ``expected``: the scenario says that it is broken there."""

    relation: str
    verdict: str
    signature: str = ""
    why: str = ""
    expected: bool = False


@dataclass(frozen=True)
class AbilityRow:
    """A scenario as it was measured: what drafts in it and for which model, when, and by which specdebug."""

    scenario: str
    algorithm: str
    architecture: str
    day: str
    specdebug: str
    cells: tuple[AbilityCell, ...]

    def of(self, verdict: str) -> list[AbilityCell]:
        return [each for each in self.cells if each.verdict == verdict]

    @classmethod
    def read(cls, item: Item) -> AbilityRow:
        """Inverse of ``asdict``. Raises ContentError."""
        names = ("scenario", "algorithm", "architecture", "day", "specdebug")
        table = item.table(required=(*names, "cells"))
        return cls(**{name: table[name].text() for name in names}, cells=tuple(map(_cell, table["cells"].items())))


def _cell(item: Item) -> AbilityCell:
    table = item.table(required=("relation", "verdict", "signature", "why", "expected"))
    texts = {name: table[name].text(empty=True) for name in ("relation", "signature", "why")}
    verdict = table["verdict"].text(choices=VERDICTS)
    return AbilityCell(verdict=verdict, expected=table["expected"].boolean(), **texts)


def measured(
    scenarios: Sequence[Scenario], target: ReleasedEngine, runner: TwinRunner, library: RunContent
) -> Iterator[AbilityRow]:
    """Serve the first arm of each scenario by every relation but ``release``, and hand out what it came to as soon as
    it is known. Raises KeyboardInterrupt for a signal."""
    return (_measured(scenario, target, runner, library) for scenario in scenarios)


def _measured(scenario: Scenario, target: ReleasedEngine, runner: TwinRunner, library: RunContent) -> AbilityRow:
    there, arm = scenario.on(target), next(iter(scenario.arms))
    options = there.engine_of(arm)
    try:
        if why := there.why_not(arm):
            raise SpecDebugError(why)
        plan = plan_twins(scenario, Choices(target=target), DEFAULT, library, f"{scenario.path.stem}: ")
        (answer,) = runner.run([replace(plan, pairs=tuple(each for each in plan.pairs if each.base.arm == arm))])
        if answer.interrupted:
            raise KeyboardInterrupt
        cells = tuple(_came_to(each) for each in answer.results)
    except SpecDebugError as error:
        why = error.problems[0].reason if isinstance(error, ContentError) else str(error)
        cells = tuple(AbilityCell(name, "not run", why=one_line(why, 400)) for name in DEFAULT)
    return AbilityRow(
        scenario.path.stem,
        _drafts_by(options, target),
        _architecture(str(options.get("model", ""))),
        datetime.date.today().isoformat(),
        __version__,
        cells,
    )


def _came_to(result: TwinResult) -> AbilityCell:
    name, expected = result.pair.relation.name, bool(result.pair.broken)
    if result.verdict == "not compared":
        return AbilityCell(name, "not compared", why=one_line(result.judged.why, 400), expected=expected)
    if result.verdict == "holds":
        return AbilityCell(name, "pass", expected=expected)
    return AbilityCell(name, "fail", result.signature or "", one_line(result.words, 400), expected)


def _drafts_by(options: Mapping[str, Any], target: ReleasedEngine) -> str:
    """As ``TargetOptions.drafts_by``; as the scenario says it, where the target declines that."""
    try:
        return options_of(target).drafts_by(options)
    except SpecDebugError:
        return str((options.get("speculative") or {}).get("algorithm", "none"))


def _architecture(model: str) -> str:
    """The class of a checkpoint's model; its name, where that is not said."""
    try:
        named = config_of(checkpoint_path(model)).get("architectures")
    except SpecDebugError:
        return model
    return str(named[0]) if isinstance(named, list) and named else model


def keep_abilities(here: Installed, target: ReleasedEngine, row: AbilityRow) -> None:
    """Put a row in the place of what was known of its scenario. Raises RecordError."""
    others = [each for each in known_abilities(here).get(target.runs, ()) if each.scenario != row.scenario]
    rows = sorted((*others, row), key=lambda each: each.scenario)
    _record(here, target.runs).write({"target": target.runs, "rows": [asdict(each) for each in rows]})


def known_abilities(here: Installed) -> dict[str, list[AbilityRow]]:
    """What was measured of an environment, by the engine and model runner. Raises RecordError."""
    found: dict[str, list[AbilityRow]] = {}
    for path in sorted(here.folder.glob("abilities-*.json")):
        record = _record(here, path.stem.removeprefix("abilities-"))
        try:
            table = record.read(_MAX_BYTES).table(required=("target", "rows"))
            found[table["target"].text()] = [AbilityRow.read(each) for each in table["rows"].items()]
        except OSError as error:
            raise RecordError(f"cannot read {path}: {error.strerror}") from None
        except ContentError as error:
            raise record.damaged(error) from None
    return found


def _record(here: Installed, runs: str) -> Record:
    path: Path = here.folder / f"abilities-{runs.replace('/', '-')}.json"
    return Record(path, "what was measured", "remove it", "specdebug engines measure makes it again")
