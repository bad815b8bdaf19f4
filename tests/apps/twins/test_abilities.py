"""What was measured of an engine: what a pair comes to as a cell, how it is kept, and how it is shown."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.apps.twins import abilities
from specdebug.apps.twins.abilities import AbilityCell, AbilityRow, keep_abilities, known_abilities, measured
from specdebug.apps.twins.plan import TwinPlan
from specdebug.base.errors import SpecDebugError
from specdebug.cli.main import run
from specdebug.report.listings import ability_line
from specdebug.scenario.library import Library
from specdebug.targets.installs.store import Installed
from specdebug.targets.settings import ReleasedEngine, parse_target
from specdebug.workers.records import RecordError

CELLS = (
    AbilityCell("plain", "pass"),
    AbilityCell("chunks", "fail", "twin@chunks", "hit.0 verify 4, accept lengths: 4 in the arm, 1 in its twin", True),
    AbilityCell("eager", "not compared", why="its graphs are not used here"),
)
ROW = AbilityRow("eagle_chain", "EAGLE, chains", "LlamaForCausalLM", "2026-11-26", "0.1.0", CELLS)


def engine(text: str) -> ReleasedEngine:
    choice = parse_target(text)
    assert isinstance(choice, ReleasedEngine)
    return choice


@pytest.fixture
def here(tmp_path: Path) -> Installed:
    there = Installed(tmp_path / "v", "vllm", "0.32.0", "cpu", sys.executable, False, done=("installed",))
    there.write()
    return there


def test_each_runner_keeps_its_own_and_a_scenario_its_newest(here: Installed) -> None:
    newer = AbilityRow("eagle_chain", "EAGLE, chains", "LlamaForCausalLM", "2026-11-27", "0.1.0", CELLS[:1])
    other = AbilityRow("dflash", "DFLASH, chains", "LlamaForCausalLM", "2026-11-26", "0.1.0", CELLS[:1])
    for target, row in (("vllm", ROW), ("vllm/v2", ROW), ("vllm", other), ("vllm", newer)):
        keep_abilities(here, engine(target), row)
    assert known_abilities(here) == {"vllm/v1": [other, newer], "vllm/v2": [ROW]}


def test_a_damaged_file_is_named_with_its_mend(here: Installed) -> None:
    keep_abilities(here, engine("vllm"), ROW)
    (file,) = here.folder.glob("abilities-*.json")
    file.write_text(file.read_text().replace('"pass"', '"perhaps"'))
    with pytest.raises(RecordError, match=r"abilities-vllm-v1\.json:.*engines measure makes it again"):
        known_abilities(here)


class Served:
    """Stands for the runner of twins."""

    def __init__(self, *verdicts: str) -> None:
        self.verdicts = verdicts

    def run(self, plans: Any) -> Any:
        results = []
        for pair, verdict in zip(plans[0].pairs, self.verdicts, strict=True):
            judged = SimpleNamespace(why="there is none" if verdict == "not compared" else "")
            signature = f"twin@{pair.relation.name}" if verdict == "broken" else None
            words = "one is wrong"
            results.append(SimpleNamespace(pair=pair, verdict=verdict, judged=judged, signature=signature, words=words))
        return [SimpleNamespace(results=results, interrupted=False)]


def test_a_scenario_s_first_arm_comes_to_a_row_of_cells(here: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    scenario = library.scenario("twins/eagle_chain")
    names = ("plain", "chunks", "eager")

    def plan(scenario: Any, *_: Any) -> Any:
        pairs: Any = [
            SimpleNamespace(
                relation=SimpleNamespace(name=name), base=SimpleNamespace(arm="fixed"), broken=name == "chunks"
            )
            for name in names
        ]
        return TwinPlan(scenario, tuple(pairs))

    monkeypatch.setattr(abilities, "plan_twins", plan)
    runner: Any = Served("holds", "broken", "not compared")
    (row,) = measured([scenario], engine("vllm==0.32.0"), runner, library)
    assert (row.scenario, row.algorithm, row.architecture) == ("eagle_chain", "EAGLE, chains", "LlamaForCausalLM")
    assert row.cells == (
        AbilityCell("plain", "pass"),
        AbilityCell("chunks", "fail", "twin@chunks", "one is wrong", True),
        AbilityCell("eager", "not compared", why="there is none"),
    )
    assert ability_line(row).startswith("eagle_chain (EAGLE, chains, LlamaForCausalLM): 1 pass, 1 fail, 1 not compared")


def test_what_is_not_run_there_says_why_in_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    scenarios = [library.scenario(f"twins/{name}") for name in ("eagle_tree", "standalone")]

    def refuse(*_: Any) -> Any:
        raise SpecDebugError("nothing fits")

    monkeypatch.setattr(abilities, "plan_twins", refuse)
    runner: Any = Served()
    tree, whole = measured(scenarios, engine("vllm==0.32.0"), runner, library)
    assert {(each.verdict, each.why) for each in tree.cells} == {("not run", "it drafts chains, not trees")}
    assert {(each.verdict, each.why) for each in whole.cells} == {("not run", "nothing fits")}


def test_the_table_has_every_cell(here: Installed, capsys: pytest.CaptureFixture[str]) -> None:
    keep_abilities(here, engine("vllm/v2"), ROW)
    assert run(["engines", "list", "--abilities", "--into", str(here.folder.parent)]) == 0
    out = capsys.readouterr().out
    assert "vllm/v2==0.32.0 for cpu" in out
    assert "chunks (known)" in out
    assert "eagle_chain eager: its graphs are not used here" in out
    assert run(["engines", "list", "--abilities", "--into", str(here.folder.parent), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert (document["target"], document["rows"][0]["cells"][1]["signature"]) == ("vllm/v2==0.32.0", "twin@chunks")


def test_what_was_not_measured_says_how(here: Installed, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["engines", "list", "--abilities", "--into", str(here.folder.parent)]) == 0
    assert "vllm==0.32.0: not measured; specdebug engines measure vllm==0.32.0 does it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "told"), [("embedded", "is no engine that is installed"), ("vllm", "not installed")]
)
def test_what_cannot_be_measured(target: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["engines", "measure", target, "--into", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err
