"""What a server's log tells the harness in lines of its own."""

from __future__ import annotations

import json
from pathlib import Path

from specdebug.targets.inside.words import SAID
from specdebug.targets.launch.log import ServerLog


def add(path: Path, **facts: object) -> None:
    with path.open("a") as file:
        file.write(f"{SAID}{json.dumps(facts)}\n")


def test_a_broken_law_is_new_once_and_those_before_the_run_are_not(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    add(path, pid=1, law="rows: row 1 is lost", batch=3)
    log = ServerLog(path)
    assert log.new_problems() == []
    add(path, pid=1, law="locks: radix node 2 has lock_ref 2", batch=4)
    assert log.new_problems() == ["locks: radix node 2 has lock_ref 2"]
    assert log.new_problems() == []


def test_the_ledger_of_faults_comes_in_order_and_without_the_process(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    log = ServerLog(path)
    assert log.new_injections() == []
    add(path, pid=1, ledger="injected", number=0, fault="slots_leaked")
    path.open("a").write("a line of the engine's\n")
    add(path, pid=1, ledger="unfired", number=1, why="the run has no step 9")
    assert log.new_injections() == [
        {"ledger": "injected", "number": 0, "fault": "slots_leaked"},
        {"ledger": "unfired", "number": 1, "why": "the run has no step 9"},
    ]
    add(path, pid=1, ledger="unfired", number=2, why="the run has no step 9")
    assert [each["number"] for each in log.new_injections()] == [2]


def test_what_ran_while_the_server_started_counts_for_every_run(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    first = ServerLog(path)
    add(path, pid=1, hits={"26972": {"26972#1": 1, "26972#2": 0}})
    first.begin()
    add(path, pid=1, hits={"26972": {"26972#1": 1, "26972#2": 3}})
    second = ServerLog(path, ready=first.begun)
    add(path, pid=1, hits={"26972": {"26972#1": 2, "26972#2": 3}})
    assert first.hits() == {"26972": {"26972#1": 2, "26972#2": 3}}
    assert second.hits() == {"26972": {"26972#1": 2, "26972#2": 0}}
