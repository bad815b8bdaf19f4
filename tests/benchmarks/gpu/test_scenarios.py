"""Which arms are run under which plan, and when two devices are said to differ."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import scenarios
from benchmarks.gpu.scenarios import arm_runs, differences, exit_code, table, without_device
from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.scenario.library import Library
from specdebug.verdict.outcome import Outcome, RequestResult, Tie
from tests.run.fakes import text_of

NAMES = ("topk_page_table", "cache_hit")


def test_every_arm_runs_with_the_plan_unless_its_fix_lies_in_another() -> None:
    runs = arm_runs(Library(), NAMES, "cuda", "bfloat16", ("triton",))
    plans = {(run.scenario.name, run.arm): run.config.attention_backend for run in runs}
    assert plans == {
        ("topk-page-table", "fixed"): "triton",
        ("topk-page-table", "reverted"): "fa3",  # there is no page table in triton's plan
        ("cache-hit", "recompute"): "triton",
        ("cache-hit", "zero_fill"): "triton",
        ("cache-hit", "reverted"): "triton",
    }
    assert {(run.config.device, run.config.dtype) for run in runs} == {("cuda", "bfloat16")}
    assert all(run.expectation is not None for run in runs)


def test_a_fix_that_one_scenario_shows_in_one_plan_and_another_in_all_is_run_accordingly() -> None:
    names = ("padding_positions", "frozen_kv_padding")
    runs = arm_runs(Library(), names, "cuda", None, ("fa3",))
    plans = {run.scenario.name: run.config.attention_backend for run in runs if 10892 in run.reverts}
    assert plans == {"padding-positions": "flashinfer", "frozen-kv-padding": "fa3"}


def test_an_arm_that_keeps_its_plan_is_run_once_under_all_plans() -> None:
    runs = arm_runs(Library(), NAMES[:1], "cuda", None, ("triton", "flashinfer", "fa3"))
    assert [without_device(run.key) for run in runs] == [
        "topk-page-table fixed triton",
        "topk-page-table reverted (fa3)",
        "topk-page-table fixed flashinfer",
        "topk-page-table fixed fa3",
        "topk-page-table reverted fa3",
    ]


def test_without_plans_each_scenario_has_its_own() -> None:
    runs = arm_runs(Library(), (), "cpu", None, ())
    assert {run.config.attention_backend for run in runs} == {"triton", "fa3", "flashinfer"}
    assert len({run.key for run in runs}) == len(runs) > 20


def result(run: ArmRun, verdict: Any = "pass", signature: str | None = None) -> ArmResult:
    return ArmResult(run, Outcome(verdict, signature, None, "", None))


def test_an_arm_that_the_machine_could_not_run_is_no_difference_and_no_verdict() -> None:
    runs = arm_runs(Library(), NAMES[:1], "cuda", None, ())
    lacking = [
        ArmResult(run, Outcome("unknown", None, None, "machine: the device is gone", None, unavailable=True))
        for run in runs
    ]
    assert differences(lacking, [result(run) for run in runs]) == []
    assert differences([result(run) for run in runs], lacking) == []
    assert exit_code(lacking, [], False) == 125
    met = [result(run, "pass" if run.arm == "fixed" else "fail", _signature(run)) for run in runs]
    assert exit_code(met, [], False) == 0
    assert exit_code([*met, *lacking], [], False) == 125
    assert exit_code([*lacking, result(runs[0], "fail", "nan@x")], [], False) == 1
    assert exit_code(met, ["another text"], False) == 1
    assert exit_code(met, [], True) == 130


def _signature(run: ArmRun) -> str | None:
    assert run.expectation is not None
    return run.expectation.signatures[0] if run.expectation.signatures else None


def test_what_ends_otherwise_than_on_the_cpu_is_named() -> None:
    there, here = (arm_runs(Library(), NAMES[:1], device, None, ()) for device in ("cuda", "cpu"))
    assert differences([result(run) for run in there], [result(run) for run in here]) == []
    found = [result(there[0]), result(there[1], "fail", "oob@x")]
    said = differences(found, [result(here[0], "unknown"), result(here[1], "fail", "nan@x")])
    assert said == [
        "topk-page-table fixed (fa3): pass, on the CPU unknown",
        "topk-page-table reverted (fa3): fail oob@x, on the CPU fail nan@x",
    ]
    assert len(differences(found, [])) == 2


def test_the_table_shows_the_widest_near_tie() -> None:
    (run, _) = arm_runs(Library(), NAMES[:1], "cpu", None, ())
    ties = (Tie(1, 0.02, 0.2, 4, 5), Tie(7, 0.05, 0.25, 8, 9))
    outcome = replace(result(run).outcome, requests=(RequestResult("a", "a", ties=ties),))
    assert "0.05 of 0.25" in text_of(table([ArmResult(run, outcome)]))


@pytest.mark.parametrize(("flaw", "code", "last"), [("", 0, "0 of 2"), ("cuda", 1, "1 of 2")])
def test_a_difference_from_the_cpu_is_a_failure_even_where_the_expectation_is_met(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flaw: str,
    code: int,
    last: str,
) -> None:
    def play(pool: Any, library: Any, runs: list[ArmRun], progress: Any) -> tuple[list[ArmResult], bool]:
        def ended(run: ArmRun) -> ArmResult:
            if run.arm == "fixed":
                return result(run)
            other = "2" if run.config.device == flaw else ""
            return result(run, "fail", f"guard@draft.expand_page_table.0->x{other}")

        assert [run.config.device for run in runs] == ["cuda", "cpu", "cuda", "cpu"]
        return [ended(run) for run in runs], False

    monkeypatch.setattr(scenarios, "run_arms", play)
    monkeypatch.setattr(sys, "argv", ["scenarios.py", str(tmp_path), NAMES[0], "--backend", "fa3", "--same-as-cpu"])
    assert scenarios.main() == code
    said = capsys.readouterr().out
    assert f"{last} arms end otherwise than on the CPU" in said
    assert "4 of 4 arms as expected, 0 near-ties" in said
    written = json.loads((tmp_path / "scenarios-cuda-fa3.json").read_text())
    assert [arm["engine"]["device"] for arm in written] == ["cuda", "cpu", "cuda", "cpu"]
