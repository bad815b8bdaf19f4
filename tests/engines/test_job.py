"""SGLang's own server in a job that knows nothing of us: a fix is taken out of it under the hook, and found again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specdebug.scenario.library import Library
from specdebug.targets.registry import find_target
from specdebug.targets.settings import parse_target
from tests.engines.job import LEAST

pytestmark = pytest.mark.engines

RELEASE = "sglang==0.5.13"
JOB = [sys.executable, str(Path(__file__).with_name("job.py"))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to run the job in: SGLang with the engine and the prompts of a scenario that 27338 is about."""
    library = Library()
    scenario = library.scenario("topk_kv_indices").on(parse_target(RELEASE))
    command = find_target(scenario.target_of("fixed")).command(scenario.engine)
    env = {name: value for name, value in command.env.items() if os.environ.get(name) != value}
    requests = library.workload(scenario, "fixed", scenario.seed).requests
    server = {
        "words": command.words,
        "path": env.pop("PYTHONPATH"),
        "env": env,
        "prompts": [list(request.new_ids) for request in requests],
        "new": requests[0].sampling.max_new_tokens,
    }
    (tmp_path / "server.json").write_text(json.dumps(server))
    return tmp_path


def accept_length(done: subprocess.CompletedProcess[str]) -> float:
    """What the job says of itself. Raises AssertionError where it came to no answer."""
    told = re.search(r"^mean accept length ([0-9.]+),", done.stdout, re.MULTILINE)
    assert told is not None, done.stdout + done.stderr
    return float(told[1])


def specdebug(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specdebug", *words, "--", *JOB], cwd=folder, capture_output=True, text=True
    )


def test_a_fix_is_taken_out_of_the_server_that_a_job_starts(folder: Path) -> None:
    """That its lines ran is certain. How the requests meet in a batch decides how long the accept lengths are with the
    fix out, so that the job may pass, and then rightly ends with 0."""
    done = specdebug(folder, "run", "--revert", "27338", "--record", "told.json")
    assert done.returncode == int(accept_length(done) < LEAST), done.stdout + done.stderr
    assert " its lines ran " in done.stderr.splitlines()[-1]
    (fix,) = json.loads((folder / "told.json").read_text())["reverts"]
    assert (fix["engines"], fix["versions"], fix["not_tried"]) == (["sglang"], ["0.5.13"], "")
    assert sorted(fix["hits"]) == ["27338#1", "27338#2"]
    assert min(fix["hits"].values()) >= 1
    assert fix["processes"] == 1, "the scheduler's, of all that the server starts"


def test_with_all_fixes_the_job_passes_and_nothing_is_reverted(folder: Path) -> None:
    done = specdebug(folder, "run", "--record", "told.json")
    assert accept_length(done) >= LEAST
    assert (done.returncode, "specdebug run:" in done.stderr) == (0, False), done.stderr
    assert json.loads((folder / "told.json").read_text())["reverts"] == []


def test_a_search_over_the_fixes_names_it(folder: Path) -> None:
    """Eight trials where all with the fix out fail, twenty where seven in ten do; each starts the server anew."""
    done = specdebug(folder, "bisect", "--over", "toggles", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"], found["proof"]) == (0, "culprit", "proven"), done.stderr
    assert [each["id"] for each in found["culprits"]] == ["27338"]
    assert "27338" not in found["not_tried"]
