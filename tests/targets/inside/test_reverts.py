"""Reverts inside an engine's processes: in force in the first and in those it spawns, and counted by each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from specdebug.patching import Patch
from specdebug.targets.inside.words import SAID, facts_in, say, tell
from specdebug.targets.launch.log import ServerLog

ENGINE = "def early():\n    return 1\n"
WORKER = "def late():\n    return 1\n"
MAIN = """
import json, multiprocessing, os, sys
import toy_engine
from specdebug.targets.inside.reverts import revert

FIXES = json.loads(os.environ["FIXES"])


def work():
    tell = revert(FIXES)
    import toy_worker
    print("child", toy_engine.early(), toy_worker.late(), toy_worker.late(), flush=True)
    tell()


if __name__ == "__main__":
    revert(FIXES)
    print("first", toy_engine.early(), flush=True)
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


def test_they_are_in_force_in_every_process_and_counted_in_the_log(tmp_path: Path) -> None:
    for name, text in (("toy_engine", ENGINE), ("toy_worker", WORKER), ("main", MAIN)):
        (tmp_path / f"{name}.py").write_text(text)
    patches = [
        Patch.of("77", "toy_engine:early", ("return 1", "return 2")),
        Patch.of("78", "toy_worker:late", ("return 1", "return 3")),
    ]
    fixes = [{"pr": int(patch.owner), "patches": [asdict(patch)]} for patch in patches]
    root = str(Path(__file__).resolve().parents[3])
    env = {**os.environ, "FIXES": json.dumps(fixes), "PYTHONPATH": f"{tmp_path}:{root}"}
    done = subprocess.run([sys.executable, str(tmp_path / "main.py")], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["first", "2", "child", "2", "3", "3"]), done.stderr
    log = tmp_path / "log"
    log.write_text("")
    read = ServerLog(log)
    assert read.hits() == {}
    log.write_text(done.stderr)
    assert read.hits() == {"77": {"77#1": 2}, "78": {"78#1": 2}}
    assert ServerLog(log).hits() == {"77": {"77#1": 0}, "78": {"78#1": 0}}  # of runs before its own


def test_facts_are_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    say("replaced: nothing")
    tell(pid=1, hits={})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"{SAID}replaced: nothing"
    assert [facts_in(line) for line in lines] == [{}, {"pid": 1, "hits": {}}]
    assert facts_in(f"{SAID}{{cut") == {}
    assert facts_in("another's line") == {}
