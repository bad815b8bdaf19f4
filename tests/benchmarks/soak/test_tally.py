"""What is made of workers' events and ends: alarms with a way to see them again, and an exit code."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.soak.memory import MAX_SLOPE_MB
from benchmarks.soak.tally import MOST_KEPT, Tally, WorkerTally
from specdebug.scenario.grammar import Scenario
from specdebug.workers.job import WorkerEnd
from tests.benchmarks.soak.events import DONE, FLAT, LEAKING, begin, violation, workload

LEFT = WorkerEnd("done", 0, 1.0, 400.0, "")


def tally_of(*workers: list[dict[str, Any]]) -> Tally:
    tallies = []
    for number, events in enumerate(workers):
        tallies.append(WorkerTally(number))
        for event in events:
            tallies[-1].fold(event)
        tallies[-1].ended(LEFT)
    return Tally(5, 1000, tallies)


def test_counts_add_up_over_workloads_and_workers() -> None:
    one = [begin(0), workload(decode=30, prefill=4), begin(1), workload(decode=20), *FLAT, DONE]
    found = tally_of(one, [begin(0), workload(decode=7, retracted=2), *FLAT, DONE])
    assert found.counts == {"decode": 57, "prefill": 4, "retracted": 2, "workloads": 3}
    assert found.seconds == 6.0
    assert sum(found.decoded_by["plan"].values()) == 57
    assert found.exit_code == 0


def test_a_finding_is_an_alarm_with_the_command_and_the_scenario_that_show_it() -> None:
    served = begin(4, 1, decoded=52)
    events = [begin(4), workload(decode=52), served, violation("nan", "draft.logits"), violation("guard", "a->b")]
    found = tally_of([*events, workload(decode=3), *FLAT, DONE])
    assert found.exit_code == 1
    (alarm,) = found.to_dict()["alarms"]
    assert alarm["signature"] == "guard@a->b", "what was overrun comes before what was computed from it"
    assert alarm["consequences"] == ["nan@draft.logits"]
    assert alarm["again"] == "python -m benchmarks.soak --seed 5 --engine 0.4 --steps 53"
    assert Scenario.from_dict(alarm["scenario"]).name == "soak-0-4-1"


def test_everything_found_is_counted_though_few_details_are_kept() -> None:
    many = [violation("nan", "x.y", step) for step in range(3 * MOST_KEPT)]
    found = tally_of([begin(), *many, violation("pools", "ownership"), workload(), *FLAT, DONE])
    (alarm,) = found.alarms
    assert alarm.kinds == {"nan": 3 * MOST_KEPT, "pools": 1}
    assert len(alarm.violations) == MOST_KEPT


def test_two_workloads_are_two_alarms() -> None:
    found = tally_of(
        [begin(0), violation("nan", "x.y"), workload(), begin(1), violation("nan", "x.y"), workload(), *FLAT, DONE]
    )
    assert [alarm.engine for alarm in found.alarms] == [0, 1]


@pytest.mark.parametrize("before", [[], [begin(2, 0, decoded=9)]])
def test_a_worker_that_dies_is_an_alarm(before: list[dict[str, Any]]) -> None:
    worker = WorkerTally(1)
    for event in before:
        worker.fold(event)
    worker.ended(WorkerEnd("signal", -11, 1.0, 400.0, "Segmentation fault"))
    (alarm,) = worker.alarms
    assert alarm.first.signature == "crash:SIGSEGV"
    assert alarm.first.detail.endswith("Segmentation fault")
    assert Tally(0, 10, [worker]).exit_code == 1


def test_an_interrupted_worker_is_none_and_the_soak_says_so() -> None:
    worker = WorkerTally(0)
    worker.fold(begin())
    worker.fold(workload(decode=12))
    worker.ended(WorkerEnd("interrupted", -9, 1.0, 400.0, ""))
    found = Tally(0, 10, [worker], interrupted=True)
    assert (found.exit_code, found.alarms, found.counts["decode"]) == (130, [], 12)


def test_a_leak_in_one_of_two_workers_fails_the_soak() -> None:
    found = tally_of([*FLAT, DONE], [*LEAKING, DONE])
    assert (found.memory, found.exit_code) == ("grows", 1)
    trend = found.workers[1].trend
    assert trend is not None
    assert trend.slope_mb == pytest.approx(100.0)
    assert trend.slope_mb > MAX_SLOPE_MB


def test_memory_that_nobody_looked_at_is_unknown_unless_it_is_not_asked_for() -> None:
    found = tally_of([*FLAT, DONE], [*FLAT[:3], DONE])
    assert (found.memory, found.exit_code) == ("unknown", 125)
    found.judges_memory = False
    assert found.exit_code == 0
