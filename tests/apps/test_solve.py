"""Which settings a log leads to, how what was run fits it, and what of it this machine cannot tell."""

from pathlib import Path
from typing import Any

import pytest

from specdebug.apps.solve import (
    LogSetting,
    attempts,
    engine_for,
    fit,
    functions_of,
    machine_needed,
    recognised,
    showing,
)
from specdebug.apps.triage import candidates
from specdebug.logs.scan import Scan, scan_bytes
from specdebug.scenario.library import Library
from specdebug.targets.installs.store import VARIABLE

LIBRARY = Library()
OWN = (
    "topk-kv-indices\n"
    "reverted  expected pass\n"
    "  guard@draft.kv_indices->draft.kv_indptr at step 2  draft.kv_indices overran by 256 bytes\n"
    "topk-kv-indices: reverted fail guard@draft.kv_indices->draft.kv_indptr (4.0 s)\n"
)
LAUNCH = "+ python -m sglang.launch_server --attention-backend fa3 --page-size 16 --speculative-eagle-topk 4 {more}\n"
OVERRUN = "AssertionError: spec v2 page>1 topk>1 draft over-allocation (480) exceeds req_to_token row width (276)\n"


def read(log: str) -> Scan:
    return scan_bytes(log.encode())


def led_to(log: str, target: str = "", from_log: Path | None = None) -> list[LogSetting]:
    found = read(log)
    return list(attempts(found, candidates(found, LIBRARY), LIBRARY, target, from_log))


def on(log: str) -> tuple[str, Any]:
    found = read(log)
    return engine_for(found, candidates(found, LIBRARY), LIBRARY)


def toggle(number: int) -> Any:
    return next(each for each in LIBRARY.registry.all if each.pr == number)


def test_the_scenario_that_a_log_names_is_tried_first_with_nothing_reverted() -> None:
    first, *others = led_to(OWN)
    assert first.words == ["topk_kv_indices", "--arm", "fixed"]
    assert (first.fix, first.pattern) == (None, "guard@draft.kv_indices*")
    assert [(each.fix, each.scenario) for each in others] == [
        (27338, "topk_kv_indices"),
        (27460, "mla_topk_kv_indices"),
    ]


def test_what_is_followed_is_how_the_fix_shows_on_the_engine_of_the_log() -> None:
    found = "mismatch@draft_kv at step 2\n  oob@draft_prefill.input_ids at step 1\nchunk-tail: fixed fail mismatch@x \n"
    assert led_to(found)[0].pattern == "mismatch@draft_kv"
    assert led_to(found, "sglang==0.5.23")[0].pattern == "oob@draft_prefill.input_ids"


def test_a_failure_of_another_engine_leads_to_what_shows_the_fix_there() -> None:
    first, second = led_to(LAUNCH.format(more="") + OVERRUN, "sglang==0.5.23")
    assert first.words == ["row_headroom", "--arm", "fixed", "--target", "sglang==0.5.23"]
    assert first.pattern.startswith("assert@server.spec-v#")
    assert (first.fix, second.fix, second.target) == (26972, 26972, "")
    assert second.on == [
        "--backend",
        "fa3",
        "--page-size",
        "16",
    ]  # its own failure is another one, so the log's options


def test_damage_alone_leads_to_the_suspects_under_the_options_of_the_log(tmp_path: Path) -> None:
    log = LAUNCH.format(more="") + "CUDA error: an illegal memory access was encountered\n"
    *tried, last = led_to(log, from_log=tmp_path / "from-log.yaml")
    assert {each.over for each in tried} == {("--backend", "fa3", "--page-size", "16")}
    assert (last.scenario, last.arm) == (str(tmp_path / "from-log.yaml"), "as_logged")


def test_a_test_that_is_here_is_tried_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = "FAILED test_it.py::test_serves - AssertionError: x\n1 failed in 2.0s\n"
    assert led_to(log) == []
    (tmp_path / "test_it.py").touch()
    (only,) = led_to(log)
    assert str(only) == "python -m pytest test_it.py::test_serves"


@pytest.mark.parametrize(
    ("verdict", "signatures", "fits"),
    [
        ("fail", ["guard@draft.kv_indices->draft.kv_indptr"], "same"),
        ("fail", ["nan@verify.logits", "guard@draft.kv_indices->draft.kv_indptr"], "same"),
        ("fail", ["guard@elsewhere"], "alike"),
        ("fail", ["nan@verify.logits"], "otherwise"),
        ("pass", [None], "passes"),
        ("unknown", [None], "no verdict"),
    ],
)
def test_a_run_fits_by_its_signature_else_by_its_kind_of_damage(
    verdict: str, signatures: list[str | None], fits: str
) -> None:
    violations = [{"signature": each} for each in signatures[1:]]
    document = {"arms": [{"verdict": verdict, "signature": signatures[0], "violations": violations}]}
    assert fit(document, read(OWN)) == fits


def test_a_run_that_is_not_there_has_no_verdict() -> None:
    assert fit({}, read(OWN)) == "no verdict"


def test_a_pattern_of_a_failure_is_recognised_in_the_log() -> None:
    assert recognised("guard@draft.kv_indices*", read(OWN))
    assert not recognised("nan@*", read(OWN))
    assert not recognised(None, read(OWN))


def test_a_log_of_ours_is_tried_on_our_engine() -> None:
    assert on(OWN) == ("", None)


def test_a_log_that_names_no_engine_is_of_the_one_on_which_the_fix_shows_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    _, other = on("E       AssertionError: oob@draft.expand_page_table: value not below 3\n")
    assert other.run == "specdebug engines install sglang"
    assert on("E       AssertionError: oob@draft.forward.positions: value not below 1\n") == ("", None)


def test_a_release_that_is_not_installed_is_told_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    found = read("known bugs of sglang==0.5.23 are mended\n" + LAUNCH.format(more="") + OVERRUN)
    target, other = engine_for(found, (), LIBRARY)
    assert target == ""
    assert other is not None
    assert (other.what, other.run) == (
        "sglang==0.5.23 is not installed here; our own engine stood in for it",
        "specdebug engines install sglang==0.5.23",
    )


def test_a_log_of_a_gpu_says_which_machine_would_tell_more() -> None:
    gpu = machine_needed(read(LAUNCH.format(more="--tp-size 2") + OVERRUN), "ci.log")
    assert gpu is not None
    assert gpu.where == "2 CUDA GPUs with FlashAttention-3"
    assert gpu.run == "specdebug solve ci.log --device cuda"
    assert machine_needed(read(LAUNCH.format(more="--device cpu") + OVERRUN), "ci.log") is None
    assert machine_needed(read(OWN), "ci.log") is None


def test_the_functions_of_a_fix_are_those_of_the_engine_that_was_tried() -> None:
    assert functions_of(toggle(26972), "") == ["specdebug.engine.config:EngineConfig.row_headroom"]
    assert all(each.startswith("sglang.srt.") for each in functions_of(toggle(26972), "sglang==0.5.23"))


def test_a_fix_that_a_test_led_to_is_shown_by_its_scenario() -> None:
    shown = showing(toggle(10846), LIBRARY, "sglang==0.5.23")
    assert shown is not None
    assert (shown.scenario, shown.target) == ("bigram_key", "sglang==0.5.23")
    assert showing(toggle(55005), LIBRARY, "") is None
