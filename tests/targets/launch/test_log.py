"""What a server's log tells the harness in lines of its own."""

from __future__ import annotations

import json
from pathlib import Path

from specdebug.targets.inside.words import SAID
from specdebug.targets.launch.log import ServerLog


def add(path: Path, **facts: object) -> None:
    with path.open("a") as file:
        file.write(f"{SAID}{json.dumps(facts)}\n")


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
