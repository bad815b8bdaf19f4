"""Arms and searches on servers that are started for them, as the command line has them run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdebug.cli.main import run as run_command
from tests.targets.launch.starting import words

SCENARIO = """
name: started
target: {{launch: {command}, request_timeout_s: 30, ready_timeout_s: {ready}{logs}}}
probes: []
workload:
  - {{id: a, requests: 4, prompt: {{token_ids: [5, 6]}}, max_new_tokens: 6}}
oracles: {{lossless: false, sampling: false}}
arms:
  only: {{}}
  reverted: {{revert: [27338]}}
"""

Replay = Callable[..., dict[str, Any]]


@pytest.fixture
def replay(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Replay:
    monkeypatch.chdir(tmp_path)

    def run(arm: str, *more: str, ready: float = 60, log: bool = True) -> dict[str, Any]:
        logs = f", log: '{tmp_path / 'logs'}'"
        file, command = tmp_path / "started.yaml", json.dumps(shlex.join(words(*more)))
        file.write_text(SCENARIO.format(command=command, logs=logs if log else "", ready=ready))
        code = run_command(["replay", str(file), "--arm", arm, "--json"])
        out = capsys.readouterr()
        return {"code": code, "err": out.err, **(json.loads(out.out)["arms"][0] if out.out else {})}

    return run


def test_a_started_server_serves_the_arm_and_its_log_is_named(replay: Replay, tmp_path: Path) -> None:
    arm = replay("only")
    assert (arm["code"], arm["verdict"], arm["target"]) == (0, "pass", "launch")
    (log,) = (tmp_path / "logs").iterdir()
    assert f"the server's log is {log}" in arm["notes"]
    assert "reverts nothing" in log.read_text()


def test_the_log_of_a_pass_goes_unless_its_folder_was_named(
    replay: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    arm = replay("only", log=False)
    assert (arm["verdict"], [note for note in arm["notes"] if "log" in note]) == ("pass", [])
    assert list(temporary.glob("*.log*")) == []
    arm = replay("only", "--kill-after", "3", log=False)
    (log,) = temporary.glob("*.log")
    assert (arm["verdict"], f"the server's log is {log}" in arm["notes"]) == ("fail", True)


@pytest.mark.slow
def test_the_arm_s_reverts_are_in_the_server_s_environment(replay: Replay, tmp_path: Path) -> None:
    assert replay("reverted")["verdict"] == "unknown"  # nothing tells if the reverted lines ran
    (log,) = (tmp_path / "logs").iterdir()
    assert "reverts 27338" in log.read_text()


@pytest.mark.slow
def test_what_its_log_says_it_died_of_comes_first(replay: Replay) -> None:
    arm = replay("only", "--kill-after", "3", "--last-words", "async probe nan@draft.x [3 bad]")
    assert (arm["verdict"], arm["signature"]) == ("fail", "nan@draft.x")


@pytest.mark.slow
def test_a_server_that_does_not_start_is_the_user_s_to_mend(replay: Replay) -> None:
    arm = replay("only", "--say", "error: no such model", "--end", "2")
    assert arm["code"] == 2
    assert "arm 'only': the server ended (exit status 2) before it was ready" in arm["err"]
    assert "error: no such model" in arm["err"]


@pytest.mark.slow
def test_a_server_that_is_never_ready_decides_nothing_and_its_last_words_are_told(
    replay: Replay, tmp_path: Path
) -> None:
    arm = replay("only", "--sick", "503", "--say", "waiting for a lock", ready=20)
    assert (arm["code"], arm["verdict"]) == (125, "unknown")
    assert "did not answer /health within 20 s (ready_timeout_s): " in arm["detail"]
    assert f"its log is {tmp_path / 'logs'}" in arm["detail"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "failures", "servers"), [((), 0, 1), (("--kill-after", "1"), 3, 3)], ids=["sound", "failing"]
)
def test_trials_of_a_search_share_a_server_that_is_still_healthy(
    more: tuple[str, ...], failures: int, servers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, logs = tmp_path / "searched.yaml", tmp_path / "logs"
    command = json.dumps(shlex.join(words(*more)))
    file.write_text(SCENARIO.partition("arms:")[0].format(command=command, logs=f", log: '{logs}'", ready=60))
    assert run_command(["flake", str(file), "--max-trials", "3", "--json"]) == (1 if failures else 0)
    assert json.loads(capsys.readouterr().out)["failures"] == failures
    assert len(list(logs.iterdir())) == servers
