"""SGLang's own server in a job that knows nothing of us: a fix is taken out of it under the hook, and found again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdebug.scenario.library import Library
from specdebug.targets.base import OverThere
from specdebug.targets.registry import find_target
from specdebug.targets.settings import parse_target

pytestmark = pytest.mark.engines

RELEASE = "sglang==0.5.13"
JOB = [sys.executable, str(Path(__file__).with_name("job.py"))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to run the job in: SGLang with the engine and the prompts of a scenario that 27338 is about."""
    library = Library()
    scenario = library.scenario("topk_kv_indices").on(parse_target(RELEASE))
    command = find_target(scenario.target_of("fixed")).command(scenario.engine, OverThere())
    env = {name: value for name, value in command.env.items() if os.environ.get(name) != value}
    env = {name: value.replace("{scratch}", str(tmp_path)) for name, value in env.items()}
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


def specdebug(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specdebug", *words, "--", *JOB], cwd=folder, capture_output=True, text=True
    )


def test_a_fix_is_taken_out_of_the_server_that_a_job_starts(folder: Path) -> None:
    """How the requests meet in a batch decides if the job fails: seven times in ten."""
    done = specdebug(folder, "run", "--revert", "27338", "--record", "told.json")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "mean accept length" in done.stdout
    (fix,) = json.loads((folder / "told.json").read_text())["reverts"]
    assert (fix["engines"], fix["versions"], fix["not_tried"]) == (["sglang"], ["0.5.13"], "")
    assert sorted(fix["hits"]) == ["27338#1", "27338#2"]
    assert specdebug(folder, "run").returncode == 0


def test_a_search_over_the_fixes_names_it(folder: Path) -> None:
    """Some twenty trials, each of which starts the server anew."""
    done = specdebug(folder, "bisect", "--over", "toggles", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"], found["proof"]) == (0, "culprit", "proven"), done.stderr
    assert [each["id"] for each in found["culprits"]] == ["27338"]
