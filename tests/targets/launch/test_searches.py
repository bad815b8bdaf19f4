"""Searches on servers that are started: trials of one set of reverts share one, and a failure ends it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from specdebug.cli.main import run
from tests.targets.launch.starting import words

SCENARIO = """
name: searched
target: {{launch: {command}, request_timeout_s: 30, log: '{logs}'}}
probes: []
workload:
  - {{id: a, requests: 2, prompt: {{token_ids: [5, 6]}}, max_new_tokens: 6}}
oracles: {{lossless: false, sampling: false}}
"""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("more", "failures", "servers"),
    [((), 0, 1), (("--kill-after", "1"), 3, 3)],
    ids=["sound", "failing"],
)
def test_trials_share_a_server_that_is_still_healthy(
    more: tuple[str, ...],
    failures: int,
    servers: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "searched.yaml"
    file.write_text(SCENARIO.format(command=json.dumps(shlex.join(words(*more))), logs=tmp_path / "logs"))
    assert run(["flake", str(file), "--max-trials", "3", "--json"]) == (1 if failures else 0)
    answer = json.loads(capsys.readouterr().out)
    assert answer["failures"] == failures
    assert len(list((tmp_path / "logs").iterdir())) == servers
