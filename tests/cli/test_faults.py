"""``specdebug faults`` and ``replay --fault`` as a user meets them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdebug.cli.main import run
from specdebug.engine.config import EngineConfig
from specdebug.engine.workers.registry import LINEUP
from specdebug.faults.catalogue import CLASSES, check_fit
from specdebug.faults.minimal import TREE, server_of
from specdebug.faults.model import BadFault, Fault
from tests.diverge.samples import SCENARIO

LAYERS = LINEUP["MTP"].options(*TREE)["speculative"]
V1 = LINEUP["EAGLE v1"].options(*TREE)["speculative"]

MINI = str(Path(__file__).with_name("mini.yaml"))


def test_the_list_marks_what_is_refused_in_captured_graphs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # workers of xdist have it at 80, where the heads are folded
    assert run(["faults", "list"]) == 0
    heads, *lines = capsys.readouterr().out.splitlines()
    column = slice(heads.index("with CUDA graphs"), heads.index("what it does"))
    marked = {line.split()[0]: line[column].strip() for line in lines if line[0] != " "}
    more = {"device": "cuda", "memory": {"guards": True}}
    for kind in CLASSES.values():
        for site in kind.sites:
            try:
                config = EngineConfig.from_dict(server_of(kind, site).options(*TREE) | more)
                check_fit(Fault(kind.name, site=site), config, "base")
                refused = False
            except BadFault as error:
                refused = "inside a captured CUDA graph" in str(error)
            assert refused == (site in kind.captured_sites)
    assert marked["positions_off_by_one"] == "at draft_graph.replay.positions"
    assert marked["nan_draft_logits"] == "at draft_extend.logits"
    assert re.fullmatch(r"not at \d+ of \d+ sites", marked["index_out_of_range"])
    assert marked["nan_kv_in_use"] == ""
    assert {name for name, said in marked.items() if said} == {k.name for k in CLASSES.values() if k.captured_sites}


BAD = {
    "nan_kv_in_us": "--fault: no fault 'nan_kv_in_us'; did you mean 'nan_kv_in_use'?",
    "xyzzy": "--fault: no fault 'xyzzy'; `specdebug faults list` shows them",
    "nan_kv_in_use:stp=3": "--fault nan_kv_in_use: unknown key 'stp'; did you mean 'step'?",
    "nan_kv_in_use:step": "--fault nan_kv_in_use: 'step' is not key=value, as in step=3",
    "nan_kv_in_use:step=two": (
        "--fault nan_kv_in_use: step must be a whole number from 1 to 1000000000, not 'two'; a range is written 2..5"
    ),
    "nan_kv_in_use:step=5..2": "--fault nan_kv_in_use: step 5 to 2 runs backwards; put the first step first",
    "nan_kv_in_use:step=3,step=4": "--fault nan_kv_in_use: 'step' is given twice",
    "nan_kv_in_use:probability=nan": ("--fault nan_kv_in_use: probability must be a number from 0 to 1, not 'NaN'"),
    "nan_kv_in_use:request=a,row=1": "--fault nan_kv_in_use: address a request or a row, not both",
    "nan_kv_in_use:request=first.1": "--fault nan_kv_in_use: no request 'first.1'; did you mean 'first.0'?",
    "nan_logits:site=verify.logit": (
        "--fault nan_logits: site cannot be 'verify.logit'; did you mean 'verify.logits'?"
    ),
    "misaligned_loc": (
        "--fault misaligned_loc: it needs speculation with eagle_topk above 1, which arm 'fixed' does not have"
    ),
}


@pytest.mark.parametrize(("text", "said"), BAD.items(), ids=list(BAD))
def test_what_is_wrong_with_a_fault_is_one_line(text: str, said: str, refused: Callable[..., str]) -> None:
    assert refused("replay", MINI, "--fault", text) == said


def test_a_site_inside_a_captured_graph_is_refused_on_a_gpu(refused: Callable[..., str]) -> None:
    said = refused("replay", MINI, "--device", "cuda", "--fault", "positions_off_by_one:step=3")
    assert said == (
        "--fault positions_off_by_one: it acts at draft.forward.positions, inside a captured CUDA graph that calls "
        "nothing on the host; run it with engine.cuda_graph.enabled: false, or on the CPU"
    )


def test_the_matrix_goes_to_a_page_and_into_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "faults.html"
    classes = ["--class", "nan_logits", "--class", "cache_flushed", "--worker", "EAGLE v2", "--worker", "MTP"]
    assert run(["faults", "verify", *classes, "--jobs", "1", "--json", "--html", str(page)]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert [(each["fault"], each["effective"]) for each in document["runs"]] == [
        ("nan_logits on EAGLE v2", True),
        ("nan_logits on MTP", True),
        ("cache_flushed on EAGLE v2", False),
        ("cache_flushed on MTP", False),
    ]
    assert [row["worker"] for row in document["rows"]] == ["EAGLE v2", "MTP"] * 2
    assert document["runs"][0]["caught"]["nan@verify.logits"] == 0
    assert err.splitlines()[-1] == "6 of 6 runs, 2 of 2 effective injections caught, 0 problems"
    text = page.read_text()
    assert "every effective fault was caught" in text
    assert "specdebug faults verify --class nan_logits" in text


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--worker", "MTB"], "--worker: no worker 'MTB'; did you mean 'MTP'?"),
        (
            ["--worker", "MTP", "--target", "sglang==0.5.13"],
            "--worker is for our own engine's; sglang==0.5.13 has one",
        ),
    ],
)
def test_a_worker_that_there_is_not_is_said(argv: list[str], said: str, refused: Callable[..., str]) -> None:
    assert refused("faults", "verify", *argv) == said


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    file = tmp_path / "two.yaml"
    file.write_text(SCENARIO)
    return str(file)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--arm", "base"], "diverge needs two arms, or one and --revert or --fault"),
        (["--arm", "base", "--arm", "two"], "no arm 'two'"),
        (["--arm", "base", "--fault", "next_tokn_swapped"], "did you mean 'next_token_swapped'?"),
        (["--arm", "base@embeded", "--arm", "base"], "no target 'embeded'; did you mean 'embedded'?"),
        (["--arm", "base@0.5.13", "--arm", "base"], "a version of what? Write base@sglang==0.5.13, or --target sglang"),
        (["--arm", "base@embedded", "--arm", "base@embedded"], "or one on two targets (--arm ARM@TARGET)"),
        (["--timeout", "0"], "--timeout must be above 0 seconds, got 0"),
        (["--json-file", "/no/such/folder/x.json"], "no folder /no/such/folder"),
    ],
)
def test_what_cannot_be_asked(refused: Callable[..., str], scenario: str, argv: list[str], message: str) -> None:
    assert message in refused("diverge", scenario, *argv)


def test_arms_without_common_tensors_are_not_compared(scenario: str, told: Callable[..., Any]) -> None:
    found = told("diverge", scenario, "--arm", "base", "--arm", "chain", code=125)
    assert (found["comparable"], found["reason"]) == (
        False,
        "the arms' engines differ in speculative eagle_topk (2 and 1)",
    )


def test_a_target_that_shows_no_tensors_is_not_compared(scenario: str, told: Callable[..., Any]) -> None:
    found = told("diverge", scenario, "--arm", "base", "--arm", "base@reference", code=125)
    assert (
        found["reason"]
        == "target reference cannot show its tensors; those of embedded, sglang and vllm can be compared"
    )
    assert found["arms"] == ["base on embedded", "base on reference"]


@pytest.mark.slow
def test_a_planted_fault_is_named_with_both_values(scenario: str, told: Callable[..., Any]) -> None:
    fault = "next_token_swapped:step=3,request=r.1"
    found = told("diverge", scenario, "--arm", "base", "--fault", fault, code=1)
    assert found["arms"] == ["base", f"base (fault {fault})"]
    first, values = found["first"], found["values"]
    assert (first["what"], first["step"], first["site"], first["request"]) == ("value", 3, "draft.bonus", "r.1")
    assert values["index"] == [0]
    assert values["left"] != values["right"]
    assert found["after"][0]["step"] == 3
