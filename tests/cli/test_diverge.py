"""``specdebug diverge`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specdebug.cli.main import run
from tests.diverge.samples import SCENARIO


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    file = tmp_path / "two.yaml"
    file.write_text(SCENARIO)
    return str(file)


def diverge(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = run(["diverge", *argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


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
def test_what_cannot_be_asked(capsys: pytest.CaptureFixture[str], scenario: str, argv: list[str], message: str) -> None:
    assert run(["diverge", scenario, *argv]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_arms_without_common_tensors_are_not_compared(capsys: pytest.CaptureFixture[str], scenario: str) -> None:
    code, found = diverge(capsys, scenario, "--arm", "base", "--arm", "chain")
    assert code == 125
    assert (found["comparable"], found["reason"]) == (
        False,
        "the arms' engines differ in speculative eagle_topk (2 and 1)",
    )


def test_a_target_that_shows_no_tensors_is_not_compared(capsys: pytest.CaptureFixture[str], scenario: str) -> None:
    code, found = diverge(capsys, scenario, "--arm", "base", "--arm", "base@reference")
    assert code == 125
    assert (
        found["reason"]
        == "target reference cannot show its tensors; those of embedded, sglang and vllm can be compared"
    )
    assert found["arms"] == ["base on embedded", "base on reference"]


@pytest.mark.slow
def test_a_planted_fault_is_named_with_both_values(capsys: pytest.CaptureFixture[str], scenario: str) -> None:
    fault = "next_token_swapped:step=3,request=r.1"
    code, found = diverge(capsys, scenario, "--arm", "base", "--fault", fault)
    assert code == 1
    assert found["arms"] == ["base", f"base (fault {fault})"]
    first, values = found["first"], found["values"]
    assert (first["what"], first["step"], first["site"], first["request"]) == ("value", 3, "draft.bonus", "r.1")
    assert values["index"] == [1]
    assert values["left"] != values["right"]
    assert found["after"][0]["step"] == 3
