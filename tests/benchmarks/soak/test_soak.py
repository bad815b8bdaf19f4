"""The command: how work is shared, what it prints, writes and ends with, whatever becomes of its workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak import __main__ as soak
from specdebug.workers.child import WorkerStartError
from specdebug.workers.job import WorkerEnd
from tests.benchmarks.soak.events import DONE, FLAT, LEAKING, begin, violation, workload

LEFT = WorkerEnd("done", 0, 1.0, 400.0, "")
COVERED = {"event": "coverage", "reached": ["verify.logits", "no.longer.there"]}
SERVED = [begin(), workload(decode=40, prefill=5, length=6, abort=1), COVERED]
Script = Callable[[Any, Any], None]


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch) -> Callable[[Script], list[Any]]:
    """Let a function of job and listener stand in for the worker of every job; gives the jobs as they come."""

    def put(script: Script) -> list[Any]:
        jobs: list[Any] = []

        class Pool:
            def __init__(self, *_: Any) -> None: ...
            def __enter__(self) -> Pool:
                return self

            def __exit__(self, *_: object) -> None: ...

            def run(self, due: Sequence[Any], listener: Any) -> None:
                for job in due:
                    jobs.append(job)
                    listener.started(job)
                    script(job, listener)
                    listener.waiting()

        monkeypatch.setattr(soak, "WorkerPool", Pool)
        return jobs

    return put


def telling(*events: dict[str, Any]) -> Script:
    def script(job: Any, listener: Any) -> None:
        for event in events:
            listener.event(job, event)
        listener.ended(job, LEFT)

    return script


def test_a_clean_soak(
    act: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # wide enough for a table
    jobs = act(telling(*SERVED, *FLAT, DONE))
    assert soak.main(["--steps", "101", "--jobs", "2", "--seed", "9"]) == 0
    assert [job.payload["steps"] for job in jobs] == [51, 50]
    assert {job.payload["seed"] for job in jobs} == {9}
    said = capsys.readouterr().out
    assert "90 clean steps, no false alarm; memory is flat" in said
    rows = {line.split("  ")[0]: line.split()[-3:] for line in said.splitlines() if line}
    assert rows["decode steps"] == ["80", "40", "40"]
    assert rows["requests"] == ["14", "7", "7"]
    assert rows["findings of probes"] == ["0", "0", "0"]
    assert [row for label, row in rows.items() if label.startswith("sites reached, of")] == [["1", "1", "1"]]
    assert rows["MB at rest, 50% of the steps"][-2:] == ["400.0", "400.0"]


def test_a_false_alarm_is_told_with_its_command_and_scenario(
    act: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    alarm = [begin(3, 1, decoded=40), violation("oob", "draft.topk_index"), workload(decode=2)]
    act(telling(*SERVED, *alarm, *FLAT, DONE))
    file = tmp_path / "soak.json"
    assert soak.main(["--steps", "100", "--jobs", "1", "--json", str(file)]) == 1
    said = capsys.readouterr().out
    assert "FALSE ALARM oob@draft.topk_index: workload soak-0-3-1, step 3: what" in said
    assert "again: python -m benchmarks.soak --seed 0 --engine 0.3 --steps 41" in said
    assert "1 false alarms; memory is flat" in said
    assert [line.split()[-2:] for line in said.splitlines() if line.startswith("findings of probes")] == [["1", "1"]]
    written = json.loads(file.read_text())
    assert written["exit_code"] == 1
    assert written["alarms"][0]["scenario"]["name"] == "soak-0-3-1"


def test_a_leak_fails_the_soak(act: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]) -> None:
    act(telling(*SERVED, *LEAKING, DONE))
    assert soak.main(["--steps", "100", "--jobs", "1"]) == 1
    said = capsys.readouterr().out
    assert "no false alarm; memory grows" in said
    assert "+100.0 ± 0.0" in said


def test_an_interrupt_shows_what_is_known(act: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]) -> None:
    def script(job: Any, listener: Any) -> None:
        for event in SERVED:
            listener.event(job, event)
        listener.ended(job, WorkerEnd("interrupted", -9, 1.0, 400.0, ""))
        raise KeyboardInterrupt

    act(script)
    assert soak.main(["--steps", "100", "--jobs", "1"]) == 130
    assert "interrupted: 45 clean steps, no false alarm" in capsys.readouterr().out


def test_one_engine_alone(act: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str]) -> None:
    jobs = act(telling(*SERVED, DONE))
    assert soak.main(["--engine", "1.17", "--steps", "40"]) == 0
    (job,) = jobs
    assert job.payload == {"seed": 0, "worker": 1, "steps": 40, "engine": 17}
    assert "memory" not in capsys.readouterr().out


def test_what_cannot_be_is_one_line(
    act: Callable[..., list[Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def script(job: Any, listener: Any) -> None:
        raise WorkerStartError("the worker process could not get ready: no torch")

    act(script)
    assert soak.main(["--steps", "5"]) == 2
    assert capsys.readouterr().err == "soak: the worker process could not get ready: no torch\n"
    assert soak.main(["--json", str(tmp_path / "nowhere" / "soak.json")]) == 2
    assert "no folder" in capsys.readouterr().err
    for wrong in (["--steps", "0"], ["--jobs", "-1"], ["--engine", "3"]):
        with pytest.raises(SystemExit) as left:
            soak.main(wrong)
        assert left.value.code == 2


@pytest.mark.slow
def test_real_workers_serve_real_engines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    assert soak.main(["--steps", "80", "--jobs", "2", "--json", str(file)]) == 125
    assert "too short to tell whether memory is flat" in capsys.readouterr().out
    written = json.loads(file.read_text())
    assert written["alarms"] == []
    assert written["counts"]["decode"] >= 80
    assert len(written["sites_reached"]) > 40
    assert all(worker["rest_mb"][-1][1] > 100 for worker in written["workers"])
