"""How the detection matrix comes along, for somebody who watches, and what is shown in the end."""

from __future__ import annotations

import io

from rich.console import Console

from specdebug.campaign.loops.fault_matrix import Case, CaseCheck, FaultMatrix
from specdebug.campaign.loops.fault_runs import MatrixStanding
from specdebug.engine.lineup import LINEUP
from specdebug.faults.catalogue import CLASSES
from specdebug.report.fault_matrix import LiveFaults, PlainFaults, faults_progress, left_text, render_fault_matrix


def test_plain_lines_are_few_and_say_what_is_wrong_at_once() -> None:
    stream = io.StringIO()
    with faults_progress(stream) as watcher:
        assert isinstance(watcher, PlainFaults)
        for made in range(401):
            problems = ("nan_logits, seed 3: nothing saw it",) if made == 7 else ()
            watcher.moved(MatrixStanding(400, made, made // 2, made // 2, int(made >= 7), problems))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "nan_logits, seed 3: nothing saw it"
    assert lines[1] == "20 of 400 runs, 10 of 10 effective injections caught, 1 problem"
    assert len(lines) == 1 + 20
    assert lines[-1].startswith("400 of 400 runs, ")


def test_a_terminal_shows_the_standing_and_the_latest_problems() -> None:
    watcher = LiveFaults(io.StringIO())
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(watcher._draw())
    for made in range(1, 9):
        watcher.moved(MatrixStanding(100, made, made, 0, made, (f"problem {made}",)))
    console.print(watcher._draw())
    lines = console.export_text().splitlines()
    assert lines[0] == "faults verify: starting"
    assert lines[1].startswith("faults verify: 8 of 100 runs, 0 of 8 effective injections caught, 8 problems, some ")
    assert lines[2:] == [f"problem {made}" for made in range(4, 9)]


def test_classes_without_a_row_are_listed_by_why() -> None:
    console = Console(file=io.StringIO(), width=100, record=True)
    whys = {
        Case(CLASSES["outputs_read_early"]): "no meaning there",
        Case(CLASSES["cache_lock_lost"]): "no nodes",
        Case(CLASSES["next_token_swapped"]): "no meaning there",
        Case(CLASSES["nan_logits"], "verify.logits", LINEUP["MTP"]): "no such",
        Case(CLASSES["nan_logits"], "verify.logits", LINEUP["MLA"]): "no such",
    }
    matrix = FaultMatrix((), (), left_out=whys)
    console.print(render_fault_matrix(matrix))
    lines = console.export_text().splitlines()
    assert "left out (no meaning there): outputs_read_early, next_token_swapped" in lines
    assert "left out (no nodes): cache_lock_lost" in lines
    assert "left out (no such): nan_logits at verify.logits (MTP, MLA)" in lines
    assert list(matrix.to_dict()["left_out"])[-2:] == [
        "nan_logits at verify.logits on MTP",
        "nan_logits at verify.logits on MLA",
    ]


def test_what_is_left_is_told_once_there_is_a_pace() -> None:
    assert left_text(MatrixStanding(12_000, 100), 30.0) == ""
    assert left_text(MatrixStanding(12_000, 1200), 240.0) == ", some 36 min left"
    assert left_text(MatrixStanding(100, 80), 40.0) == ", some 10 s left"


def test_rows_that_were_not_run_are_not_shown() -> None:
    matrix = FaultMatrix((CaseCheck(Case(CLASSES["nan_logits"]), ()),), (), missing=2, interrupted=True)
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(render_fault_matrix(matrix))
    assert "nan_logits" not in console.export_text()
