"""Runs of several engines side by side: what is compared, what counts as other, and what is not run."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specdebug.base.yamlio import parse_yaml
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.load import scenario_of

TOOL = Path(__file__).resolve().parents[2] / "tools" / "four_targets.py"
TEXT = """\
name: one
workload:
  - {id: greedy, requests: 2, prompt: {token_ids: [1]}}
  - {id: plain, prompt: {token_ids: [1]}, speculative: false}
  - {id: drawn, prompt: {token_ids: [1]}, temperature: 1}
not_on: {vllm: chains}
expect_on: {"sglang==0.5.13": {base: {verdict: fail, signature: "ends@stop.string"}}}
"""
ONE: Scenario = scenario_of(parse_yaml(TEXT, "one.yaml"))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("four_targets", TOOL)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def request(group: str, ids: list[int], lengths: list[int], end: str = "length") -> dict[str, Any]:
    return {"group": group, "output_ids": ids, "accept_lengths": lengths, "finish_reason": end}


OURS = {
    "greedy.0": request("greedy", [1, 2, 3], [2, 1]),
    "greedy.1": request("greedy", [1, 2, 3, 4], [4]),
    "plain.0": request("plain", [5], []),
    "drawn.0": request("drawn", [6], [1]),
}


def test_greedy_requests_are_compared_and_accept_lengths_in_any_order(tool: ModuleType) -> None:
    ours = tool.Ran("one", "embedded", "pass", requests=OURS)
    theirs = OURS | {
        "greedy.0": request("greedy", [1, 2, 3], [1, 2]),
        "plain.0": request("plain", [5], [1]),
        "drawn.0": request("drawn", [7], [3]),
    }
    there = tool.Ran("one", "sglang==0.5.18", "pass", requests=theirs)
    assert tool.cell(ONE, ours, there) == "pass; 3 of 3, 2 of 2"
    assert not tool.wrong(ONE, ours, there)
    other = tool.Ran("one", "sglang==0.5.18", "pass", requests=theirs | {"greedy.1": request("greedy", [9], [1])})
    assert tool.cell(ONE, ours, other) == "pass; 2 of 3, 1 of 2"
    assert tool.wrong(ONE, ours, other)


def test_an_output_that_the_context_ends_is_compared_as_far_as_it_goes(tool: ModuleType) -> None:
    ours = tool.Ran("one", "embedded", "pass", requests=OURS)
    for ids, end, told in (
        ([1, 2], "length", "pass; 3 of 3, 1 of 1"),
        ([1, 9], "length", "pass; 2 of 3, 2 of 2"),
        ([1, 2], "stop", "pass; 2 of 3, 2 of 2"),
    ):
        cut = tool.Ran("one", "sglang", "pass", requests=OURS | {"greedy.1": request("greedy", ids, [4], end)})
        assert tool.cell(ONE, ours, cut) == told


def test_a_run_is_held_against_what_its_scenario_expects_there(tool: ModuleType) -> None:
    ours = tool.Ran("one", "embedded", "pass", requests=OURS)

    def wrong(target: str, verdict: str, signature: str | None = None) -> bool:
        return bool(tool.wrong(ONE, ours, tool.Ran("one", target, verdict, signature, requests=OURS)))

    assert not wrong("sglang==0.5.13", "fail", "ends@stop.string")
    assert wrong("sglang==0.5.13", "pass")
    assert wrong("sglang==0.5.18", "fail", "ends@stop.string")
    assert wrong("sglang==0.5.18", "unknown")
    assert not wrong("vllm==0.32.0", "")
    assert wrong("sglang==0.5.18", "")  # it could not be run, and nobody had said so


def test_what_is_kept_is_not_run_again(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runs.jsonl"
    ran = tool.Ran("sampled", "embedded", "pass", requests=OURS)
    tool.keep(file, ran)
    tool.keep(file, tool.Ran("topk_page_table", "embedded", "pass"))
    assert tool.kept(file)["sampled", "embedded"] == ran
    assert tool.main(["topk_page_table", "--target", "vllm==0.32.0", "--keep", str(file)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[-1] == "| `topk_page_table` | pass | not run: it drafts chains, not trees |"
    assert len(file.read_text().splitlines()) == 3
    assert json.loads(file.read_text().splitlines()[-1])["why"] == "it drafts chains, not trees"
