"""Which scenarios of a hunt run at the same time, and what every one of them has."""

from __future__ import annotations

from pathlib import Path

import yaml

from specdebug.apps.hunt.hunting import Hunt, HuntRunner, side_by_side
from specdebug.apps.hunt.record import HuntRecord, Judged


def test_scenarios_of_one_engine_run_one_after_another() -> None:
    assert side_by_side(range(10), 1) == [[number] for number in range(10)]
    assert side_by_side(range(10), 2) == [[0, 4], [1, 5], [2, 6], [3, 7], [8], [9]]
    assert side_by_side([2, 3, 5, 9, 12], 3) == [[2, 5, 9], [3], [12]]
    assert side_by_side([], 2) == []


def test_what_was_asked_for_every_engine_is_in_every_scenario(tmp_path: Path) -> None:
    over = {"dtype": "bfloat16", "device": "cuda"}
    runner = HuntRunner(None, None, "embedded", 0, engine=over)  # type: ignore[arg-type] - nothing is run here
    for number in (0, 7):
        assert over.items() <= runner.scenario(number).engine.items()
    hunt = Hunt(runner, HuntRecord(tmp_path, {"target": "embedded"}, {}))
    hunt._keep(Judged(7, "fail", "nan@x"))
    assert yaml.safe_load((tmp_path / "00007.yaml").read_text())["engine"] == runner.plain(7)["engine"]
