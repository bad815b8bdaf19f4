"""``specdebug triage`` as a user meets it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from specdebug.cli.main import run
from specdebug.errors import SpecDebugError

LOGS = Path(__file__).resolve().parents[1] / "logs/quoted"
CRASH = LOGS / "sglang-5491.txt"


def test_signature_line_candidates_and_commands_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["triage", str(CRASH)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{CRASH}: illegal-address@cuda\n")
    assert f"{CRASH}:3: CUDA Error" in out
    assert "the log says: backend flashinfer, topk 2" in out
    assert "27338 size the draft graph's kv_indices rows for topk branches" in out
    assert "specdebug replay topk_kv_indices --arm reverted" in out


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["triage", str(CRASH), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["signature"] == "illegal-address@cuda"
    assert document["findings"][0]["line"] == 3
    assert document["facts"]["backend"] == "flashinfer"
    assert 27338 in [candidate["pr"] for candidate in document["candidates"]]
    assert any(command.startswith("specdebug bisect ") for command in document["commands"])
    assert document["lines"] == 6


def test_standard_input_is_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CRASH.read_bytes())))
    assert run(["triage", "-"]) == 0
    assert capsys.readouterr().out.startswith("stdin: illegal-address@cuda\n")


def test_a_log_without_a_failure_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "fine.log"
    log.write_bytes(b"all is well\n" * 12 + b"\xff\xfe\x00")
    assert run(["triage", str(log)]) == 1
    assert "no failure found in 13 lines" in " ".join(capsys.readouterr().out.split())
    log.write_bytes(b"")
    assert run(["triage", str(log), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["signature"] is None


@pytest.mark.parametrize(
    ("stopped_by", "code", "said"), [(KeyboardInterrupt(), 130, ""), (SpecDebugError("no workers"), 2, "no workers")]
)
def test_what_the_log_tells_is_said_whatever_stops_the_tries(
    stopped_by: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object) -> None:
        raise stopped_by

    monkeypatch.setattr("specdebug.triage.run.try_out", stop)
    assert run(["triage", str(CRASH), "--run"]) == code
    out, err = capsys.readouterr()
    assert out.startswith(f"{CRASH}: illegal-address@cuda\n")
    assert "to run next:" in out
    assert said in err


@pytest.mark.parametrize("name", ["none.log", "."])
def test_a_log_that_cannot_be_read_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["triage", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "cannot be read" in err


@pytest.mark.slow
def test_run_finds_the_fix_that_fails_as_the_log_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["triage", str(LOGS / "own-draft_positions.txt"), "--run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tried"][0]["pr"] == 25015
    assert document["tried"][0]["same_signature"] is True
