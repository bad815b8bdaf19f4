"""An oracle from outside the package: a scenario switches it on by its name, and it judges the embedded engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdebug.base.errors import ContentErrors
from specdebug.scenario.checks import load_scenario
from specdebug.scenario.grammar import Scenario
from tests.seams.installing import Install, installing
from tests.seams.test_target import replay

__all__ = ["installing"]

SOURCE = '''
from specdebug.events import Finishing
from specdebug.run.oracles.base import Oracle
from specdebug.verdict.outcome import Violation


class AtMost(Oracle):
    """No request may emit more tokens than its option says."""

    name = "at-most"
    needs = frozenset({"steps"})
    hears = (Finishing,)

    def on(self, event):
        request = event.request
        if len(request.output_ids) > self.bench.settings.spec.more[self.name]:
            self.bench.report(Violation("too-long", request.rid, self.bench.step, "talks too much"))
'''

SCENARIO = """
name: outside
workload: [{id: one, prompt: {token_ids: [5, 6]}, max_new_tokens: 4}]
oracles: {lossless: false, draft_kv: false, at-most: 3}
arms:
  few: {}
  many: {oracles: {at-most: 4}}
  off: {oracles: {at-most: false}}
"""


def test_an_oracle_of_another_distribution_judges_a_run(installing: Install, tmp_path: Path) -> None:
    folder = installing("counting", SOURCE, {"oracles": {"at-most": "counting:AtMost"}})
    file = tmp_path / "outside.yaml"
    file.write_text(SCENARIO)
    done = replay(folder, str(file), "--json")
    few, many, off = json.loads(done.stdout)["arms"]
    assert (few["verdict"], few["signature"]) == ("fail", "too-long@one.0")
    assert [arm["verdict"] for arm in (many, off)] == ["pass", "pass"]
    assert done.returncode == 1


def test_its_options_survive_a_round_trip_and_without_it_the_name_is_unknown(
    installing: Install, tmp_path: Path
) -> None:
    file = tmp_path / "outside.yaml"
    file.write_text(SCENARIO)
    with pytest.raises(ContentErrors, match="unknown key 'at-most' in oracles"):
        load_scenario(file, None)
    installing("counting", SOURCE, {"oracles": {"at-most": "counting:AtMost"}})
    scenario = load_scenario(file, None)
    assert scenario.oracles.more == {"at-most": 3}
    assert Scenario.from_dict(scenario.to_dict()).oracles_of("many").more == {"at-most": 4}
