"""The command: rows and totals, what it lists, how it ends, and one short run of every worker."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks.lossless import __main__ as lossless
from benchmarks.lossless.draw import Ask, Configuration
from benchmarks.lossless.judge import Judged
from benchmarks.lossless.play import Played
from benchmarks.lossless.report import render
from benchmarks.lossless.tally import Row, together
from specdebug.engine import Request, SamplingParams
from specdebug.verdict.outcome import Tie

ROOT = Path(__file__).parents[3]
TIE = Tie(position=1, margin=0.125, allowed=0.25, token=5, preferred=6)


def row(plan: str, *judged: Judged, problems: tuple[str, ...] = ()) -> Row:
    """Of one configuration, number 4, whose requests all return 4, 5."""
    asks = tuple(Ask((1, 2), 2, 0, 0, True, 0.0, (), None) for _ in judged)
    sampling, returned = SamplingParams(max_new_tokens=2), {"output_ids": [4, 5], "accept_lengths": [2]}
    requests = [Request("r", [1, 2], sampling, speculative=True, **returned) for _ in asks]
    made = Configuration({"page_size": 16, "speculative": {"num_steps": 3, "eagle_topk": 2}}, asks, None)
    played = Played(requests, problems=list(problems))
    played.met.update({"hit": 3, "padded": 0})
    found = Row("v1", plan, "us", "bfloat16")
    found.add(4, made, played, dict(enumerate(judged)))
    return found


def text(*rows: Row) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(render(rows, "title"))
    return out.getvalue()


SAME, NEAR = Judged(True, (), ()), Judged(False, (TIE,), ())
WRONG = Judged(False, (), ("output 0 is 4 for 7",))


def test_rows_add_up() -> None:
    total = together([row("fa3", SAME, NEAR), row("triton", SAME)])
    assert (total.worker, total.plan, total.dtype) == ("v1", "all", "bfloat16")
    assert (total.configurations, total.requests, total.same, total.tokens) == (2, 3, 2, 6)
    assert total.accept_mean == 2.0
    assert total.met == {"hit": 2}, "configurations, not times"
    assert total.options == {"page_size": {16: 2}, "eagle_topk": {2: 2}, "num_steps": {3: 2}}
    assert Row("none", "fa3", "us", "float32").accept_mean == 0.0


def test_a_near_tie_is_listed_once_with_its_margin() -> None:
    shown = text(row("fa3", NEAR, SAME), row("triton", NEAR))
    assert "4.r0 output 1: 5 for 6, 0.125 logits apart, 0.25 allowed, met 2 times" in shown
    assert shown.count("logits apart") == 1
    assert "0.12 of 0.25" in shown
    assert "2 configurations, 3 requests, 6 tokens: 0 wrong, 2 near-ties" in shown


def test_what_is_wrong_is_listed_with_its_plan() -> None:
    shown = text(row("fa3", WRONG, problems=("slot 3 is lost", "slot 3 is lost")), row("triton", SAME))
    assert "WRONG v1 fa3 bfloat16 4: slot 3 is lost\nWRONG v1 fa3 bfloat16 4.r0: output 0 is 4 for 7\n" in shown
    assert "2 wrong, 0 near-ties" in shown


def test_plans_are_added_up_where_there_are_several() -> None:
    assert "all" in text(row("fa3", SAME), row("triton", SAME))
    assert "all" not in text(row("fa3", SAME))


def test_rows_can_be_written() -> None:
    plain = json.loads(json.dumps(row("fa3", NEAR).to_dict()))
    assert plain["ties"] == [
        {"request": "4.r0", "position": 1, "margin": 0.125, "allowed": 0.25, "token": 5, "preferred": 6}
    ]
    assert plain["met"] == {"hit": 1}
    assert plain["accept_mean"] == 2.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert lossless.main(["--device", "cuda"]) == 125
    assert capsys.readouterr().err.startswith("lossless: there is no CUDA")


def test_without_transformers_there_is_no_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert lossless.main([]) == 125
    assert "pip install transformers" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_told_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lossless.main(["--json", str(tmp_path / "missing" / "rows.json")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_a_configuration_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        lossless.main(["--count", "9", "--only", "9"])
    assert "one of the 9 configurations, 0 to 8" in capsys.readouterr().err


def test_a_gpu_interprets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        lossless.main(["--interpret", "--device", "cuda"])
    assert "--interpret is for the CPU" in capsys.readouterr().err


@pytest.mark.slow
def test_kernels_can_be_interpreted() -> None:
    """In a process of its own: nothing takes the interpreter back."""
    pytest.importorskip("triton")
    words = ("-m", "benchmarks.lossless", "--interpret", "--worker", "v1", "--dtype", "float32", "--count", "1")
    ended = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "torch reference, Triton kernels interpreted" in ended.stdout


def test_an_engine_that_raises_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(made: Configuration) -> Played:
        raise RuntimeError("index 7 is out of range")

    monkeypatch.setattr(lossless, "play", fail)
    comparison = lossless.Comparison(lossless.arguments_of([]), tmp_path)
    found = row("fa3", SAME)
    comparison.take(found, 9, Configuration({}, (), None), "tiny")
    assert found.wrong == ["9: RuntimeError: index 7 is out of range"]


@pytest.mark.slow
def test_every_worker_is_as_transformers_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    assert lossless.main(["--count", "6", "--json", str(file)]) == 0, capsys.readouterr().out
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    assert {(each["worker"], each["plan"], each["dtype"]) for each in rows} == {
        (worker, plan, dtype)
        for worker in lossless.WORKERS
        for plan in lossless.PLANS
        for dtype in ("float32", "bfloat16")
    }
    assert all(each["configurations"] == 2 and each["requests"] > 0 for each in rows)
    assert all(each["accept_mean"] > 1.3 for each in rows if each["worker"] != "none")


@pytest.mark.slow
def test_one_configuration_can_be_played_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert lossless.main(["--worker", "mtp", "--dtype", "float32", "--count", "9", "--only", "7"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out.partition("\n")[0])["engine"]["attention_backend"] == "fa3"
    assert "1 configurations" in out
