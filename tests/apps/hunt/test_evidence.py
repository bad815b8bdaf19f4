"""What is kept of a failure: its bundle, the log of its server, and a page without a path of this machine."""

import json
import shlex
from pathlib import Path
from typing import Any

from specdebug.apps.hunt.evidence import RUNS, SeenFailure, gather
from specdebug.apps.hunt.hunting import Hunt, HuntRunner
from specdebug.apps.hunt.record import HuntRecord, Judged
from specdebug.cli.output import workers
from specdebug.report.hunt import HuntAnswer, issue_page
from specdebug.report.replay import replay_document
from specdebug.scenario.library import Library
from specdebug.targets.settings import parse_target
from tests.run.fakes import FakeLibrary, FakePool, good_run
from tests.targets.launch.starting import words

SCENARIO = """\
name: drawn
workload: [{id: a, requests: 4, prompt: {token_ids: [5, 6]}, max_new_tokens: 6}]
oracles: {lossless: false, sampling: false}
probes: []
arms: {drawn: {}}
"""


def hunt(folder: Path, pool: Any, library: Any, target: str = "embedded") -> tuple[Hunt, Path]:
    record = HuntRecord(folder, {"target": target}, {})
    file = folder / "00003.yaml"
    file.write_text(SCENARIO)
    return Hunt(HuntRunner(pool, library, parse_target(target), 0), record), file


def page(made: Hunt, signature: str, seen: SeenFailure) -> str:
    made.record.add(Judged(3, "fail", signature, "in the hunt"))
    answer = HuntAnswer(made.record, "launch: x", 0, "specdebug hunt -o h", {}, {signature: seen})
    return issue_page(answer, signature)


def test_a_failure_that_does_not_come_again_has_no_bundle_and_its_page_says_so(tmp_path: Path) -> None:
    pool = FakePool(good_run)
    made, file = hunt(tmp_path, pool, FakeLibrary())
    seen = gather(made, "nan@x", file, replay_document)
    assert seen is not None
    assert (seen.runs, seen.bundle, seen.found, len(pool.jobs)) == (RUNS, "", (), RUNS)
    assert not file.with_suffix(".specdebug").exists()
    assert gather(made, "nan@x", file, replay_document) == seen  # kept: nothing runs again
    assert len(pool.jobs) == RUNS
    told = page(made, "nan@x", seen)
    assert "> in the hunt" in told
    assert "did not fail so again in 3 runs" in told
    assert ".specdebug" not in told


def test_a_server_that_dies_is_kept_with_the_end_of_its_log(tmp_path: Path) -> None:
    said = f"loading {tmp_path}/weights.bin for /v1/models"
    command = shlex.join(words("--kill-after", "1", "--say", said))
    target = f"{{launch: {json.dumps(command)}, request_timeout_s: 30}}"
    with workers(1) as pool:
        made, file = hunt(tmp_path, pool, Library(), target)
        seen = gather(made, "crash:SIGSEGV", file, replay_document)
    assert seen is not None
    assert (seen.bundle, seen.found[0][0]) == ("00003.specdebug", "crash:SIGSEGV")
    assert said in seen.log
    assert "fake_process.py 30000 --kill-after 1" in seen.command
    assert [name for name, _ in seen.versions][:3] == ["specdebug", "torch", "python"]
    told = page(made, "crash:SIGSEGV", seen)
    assert "loading .../weights.bin for /v1/models" in told
    assert str(tmp_path) not in told
    assert "specdebug replay 00003.specdebug" in told


def test_what_was_kept_is_read_again_and_anything_else_is_not(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert SeenFailure.read(path) is None
    for text in ("{}", "[]", "not JSON", '{"found": 3}'):
        path.write_text(text)
        assert SeenFailure.read(path) is None
