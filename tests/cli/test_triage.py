"""``specdebug triage`` as a user meets it."""

import io
import json
import os
import sys
from pathlib import Path

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.cli.main import run

LOGS = Path(__file__).resolve().parents[1] / "logs/quoted"
CRASH = LOGS / "sglang-5491.txt"


def test_signature_line_candidates_and_commands_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["triage", str(CRASH)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{CRASH}: illegal-address@cuda\n")
    assert f"{CRASH}:3: CUDA Error" in out
    assert "the log says: engine sglang, backend flashinfer, topk 2" in out
    assert "27338 size the draft graph's kv_indices rows for topk branches" in out
    assert "specdebug replay topk_kv_indices --arm reverted" in out


def test_standard_input_is_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CRASH.read_bytes())))
    assert run(["triage", "-"]) == 0
    assert capsys.readouterr().out.startswith("stdin: illegal-address@cuda\n")


@pytest.mark.parametrize(
    ("stopped_by", "code", "said"), [(KeyboardInterrupt(), 130, ""), (SpecDebugError("no workers"), 2, "no workers")]
)
def test_what_the_log_tells_is_said_whatever_stops_the_tries(
    stopped_by: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object) -> None:
        raise stopped_by

    monkeypatch.setattr("specdebug.apps.triage.try_out", stop)
    assert run(["triage", str(CRASH), "--run"]) == code
    out, err = capsys.readouterr()
    assert out.startswith(f"{CRASH}: illegal-address@cuda\n")
    assert "to run next:" in out
    assert said in err


@pytest.mark.slow
def test_run_finds_the_fix_that_fails_as_the_log_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["triage", str(LOGS / "own-draft_positions.txt"), "--run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tried"][0]["pr"] == 25015
    assert document["tried"][0]["same_signature"] is True


def test_a_log_that_says_nothing_leads_to_no_fix_and_to_a_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "ci.log"
    log.write_text("FAILED tests/x.py::test_y\n1 failed\n")
    assert run(["triage", str(log)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{log}: test:tests/x.py::test_y\n")
    assert "nothing in the log points to a known fix" in out
    assert "candidates:" not in out
    assert "specdebug bisect --over commits --good REV -- python -m pytest tests/x.py::test_y" in out
    log.write_text("all is well\n")
    assert run(["triage", str(log)]) == 1
    assert "specdebug flake -- COMMAND" in capsys.readouterr().out


def test_a_pipe_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert run(["triage", str(pipe)]) == 2
    err = capsys.readouterr().err
    assert f"{pipe}: is a pipe; read it from standard input: specdebug triage - < " in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("there", [True, False])
def test_a_hostile_name_is_shown_as_text(there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a\nerror: b\x1b[31m.log"
    if there:
        log.write_text("ValueError: \x1b]0;x\x07 \x9b31m\n")
    assert run(["triage", str(log)]) == (0 if there else 2)
    out, err = capsys.readouterr()
    assert not [char for char in out + err if not char.isprintable() and char != "\n"]
    assert "error: b\\u001b[31m.log" in out + err
    assert not any(line.startswith("error: b") for line in (out + err).splitlines())


def test_a_long_log_tells_how_far_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdebug.cli.triage.QUIET_S", 0.0)
    log = tmp_path / "long.log"
    log.write_bytes(b"ordinary\n" * 300_000)
    assert run(["triage", str(log)]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told
    assert told[-1].startswith(f"reading {log}: 2 MiB in ")


def test_launch_flags_are_written_as_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, file = tmp_path / "server.log", tmp_path / "from log.yaml"
    log.write_text("python -m sglang.launch_server --page-size 16\nValueError: x\n")
    assert run(["triage", str(log)]) == 0
    assert f"specdebug triage {log} --scenario from-log.yaml   #" in capsys.readouterr().out
    assert run(["triage", str(log), "--scenario", str(file)]) == 0
    assert f"specdebug replay '{file}'" in capsys.readouterr().out
    assert '"page_size":16' in file.read_text()
    log.write_text("ValueError: x\n")
    file.unlink()
    assert run(["triage", str(log), "--scenario", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out.startswith(f"{log}: error:ValueError:x\n")
    assert "shows no launch flags" in err
    assert not file.exists()
