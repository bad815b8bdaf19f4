"""The suite's plan: bounded by default, every stage choosable."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.gpu import suite


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the stages that were run; each prints a line and succeeds."""
    names: list[str] = []

    def run(stage: suite.Stage, out: Path) -> suite.Result:
        names.append(stage.name)
        (out / f"{stage.name}.log").write_text("done\n")
        return suite.Result(stage, 1 if stage.name == "doctor" else 0, 1.0, "done")

    monkeypatch.setattr(suite, "run", run)
    return names


def call(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["suite.py", *options])
    return suite.main()


def test_twenty_seeds_are_run_only_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: list[str]
) -> None:
    assert call(monkeypatch, str(tmp_path)) == 1  # one stage failed, the others ran
    assert {"scenarios", "scenarios-bf16", "lossless"} <= set(ran)
    assert not any(name.startswith("seeds") for name in ran)
    ran.clear()
    call(monkeypatch, str(tmp_path), "--long")
    assert {"seeds-triton", "seeds-fa3", "seeds-flashinfer", "matrix-fa3"} <= set(ran)
    ran.clear()
    assert call(monkeypatch, str(tmp_path), "--only", "seeds-fa3", "lossless") == 0
    assert sorted(ran) == ["lossless", "seeds-fa3"]


def test_what_is_timed_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[str] = set()
    beside: dict[str, set[str]] = {}
    both = threading.Barrier(2)

    def run(stage: suite.Stage, out: Path) -> suite.Result:
        running.add(stage.name)
        if stage.name in ("tests", "determinism"):  # the first two checks: each waits for the other to run
            both.wait(timeout=30)
        beside[stage.name] = running - {stage.name}
        running.discard(stage.name)
        return suite.Result(stage, 0, 1.0, "done")

    monkeypatch.setattr(suite, "run", run)
    stages = suite.stages(tmp_path, 2)
    results = suite.run_all(stages, tmp_path, Console(file=io.StringIO()))
    assert [result.stage.name for result in results] == [stage.name for stage in stages]
    assert not any(beside[stage.name] for stage in stages if stage.timed)


def test_a_mistyped_stage_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ran: list[str]
) -> None:
    with pytest.raises(SystemExit):
        call(monkeypatch, str(tmp_path), "--only", "losless")
    assert "no stage losless; there are doctor" in capsys.readouterr().err
    assert ran == []


def test_every_script_that_a_stage_runs_is_there(tmp_path: Path) -> None:
    for stage in suite.stages(tmp_path, 2):
        scripts = [word for word in stage.command if word.endswith(".py")]
        assert all((suite.ROOT / script).exists() for script in scripts)
