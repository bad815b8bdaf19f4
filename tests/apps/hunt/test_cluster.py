"""A hunt whose scenarios are run elsewhere: every one is kept, in whatever order they end."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

from specdebug.apps.hunt.hunting import Hunt, HuntRunner, HuntSource, judged_in, result_with
from specdebug.apps.hunt.record import HuntRecord, Judged
from specdebug.base.trial import Trial, TrialResult
from tests.campaign.trials.searches import Source


def nodes(cut: int = 10**9) -> Source:
    """Stands in for a cluster of two workers. ``cut``: a signal comes after so many."""

    def behave(trial: Trial) -> TrialResult:
        verdict = "fail" if trial.number == 2 else "pass"
        return result_with(Judged(trial.number, verdict, "nan@x" if verdict == "fail" else ""))

    return Source(behave, 2, order=None, stop_after=cut)


def hunt(folder: Path, source: Source) -> Hunt:
    record = HuntRecord(folder, {"target": "embedded"}, {})
    runner: Any = HuntRunner(None, None, "embedded", 0)  # type: ignore[arg-type] - nothing is run here
    return Hunt(runner, record, cluster=lambda: source)


def test_every_scenario_that_is_left_is_run_and_kept(tmp_path: Path) -> None:
    source = nodes()
    made = hunt(tmp_path, source)
    made.record.add(Judged(1, "unknown"))
    assert made.run(range(5)) is False
    assert {number: one.verdict for number, one in sorted(made.record.judged.items())} == {
        0: "pass", 1: "unknown", 2: "fail", 3: "pass", 4: "pass",
    }  # fmt: skip
    assert (source.closed, (tmp_path / "00002.yaml").exists()) == (True, True)
    made.record.close()
    assert hunt(tmp_path, nodes(0)).run(range(5)) is False  # nothing is left, so no cluster is asked


def test_a_signal_keeps_what_has_ended_and_no_more_is_begun_in_time_that_is_up(tmp_path: Path) -> None:
    source = nodes(2)
    cut = hunt(tmp_path / "cut", source)
    assert cut.run(range(9)) is True
    assert (len(cut.record.judged), source.closed) == (2, True)
    late = hunt(tmp_path / "late", nodes())
    assert late.run(range(9), until=0.0) is False
    assert late.record.judged == {}


def test_what_becomes_of_a_scenario_travels() -> None:
    for one in (Judged(3, "refused", detail="no"), Judged(4, "fail", "a@b", "words", 1.5, 2, 30), Judged(5, "pass")):
        assert judged_in(pickle.loads(pickle.dumps(result_with(one)))) == one


def test_a_node_makes_its_source_and_runs_a_scenario_as_this_machine_would() -> None:
    make = partial(HuntSource, "embedded", 0, (25015,), (), {"dtype": "bfloat16"})
    source = pickle.loads(pickle.dumps(make))()
    others = [HuntSource("embedded", 1, (25015,), (), {}), HuntSource("embedded", 0, (25015,), (), {})]
    assert source.identity == make().identity
    assert source.identity not in {other.identity for other in others}
    try:
        source.start(Trial(4, frozenset(), 0))
        trial, result = source.wait()
    finally:
        source.close()
    assert (trial.number, result.outcome, result.signature) == (4, "fail", "oob@draft.forward.positions")
    assert judged_in(result).number == 4
