"""``specdebug minimise`` as a user meets it: a scenario that replays, what is kept, and every way to end."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdebug.cli.minimise import file_text
from specdebug.report.minimise import Minimisation, MinimiseProgress
from specdebug.scenario.checks import load_scenario
from specdebug.scenario.grammar import SharedPrefixPrompt
from specdebug.search.minimise import StageResult, Summary, rarer
from tests.cli.command import spawn

SIX = """
name: six
description: Two of six requests meet a prefix hit without draft KV, if the plain one comes first.
engine:
  page_size: 8
  context_length: 64
  max_running_requests: 4
  speculative: {num_steps: 2, eagle_topk: 1, num_draft_tokens: 3}
  cuda_graph: {max_bs: 4}
  memory: {num_slots: 512, fill: nan}
workload:
  - {id: others, requests: 2, prompt: {corpus: stdlib, tokens: [4, 8]}, max_new_tokens: 3}
  - id: plain
    prompt: {shared_prefix: &document {name: document, corpus: stdlib, tokens: 20}, suffix: {text: "while True:"}}
    max_new_tokens: 1
    speculative: false
    arrive: {jitter: 5}
  - {id: more, requests: 2, prompt: {corpus: stdlib, tokens: [4, 8]}, max_new_tokens: 3}
  - id: drafting
    prompt: {shared_prefix: *document, suffix: {text: "import os"}}
    max_new_tokens: 2
    arrive: {jitter: 5}
oracles: {lossless: false, draft_kv: false}
arms:
  fixed: {}
  reverted: {revert: [19897]}
expect:
  reverted: {verdict: fail, signature: "nan@draft*"}
"""


@pytest.fixture(autouse=True)
def _here() -> None:
    Path("six.yaml").write_text(SIX)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["nowhere.yaml", "-o", "x.yaml"], "nowhere.yaml: no such file"),
        (["six.yaml", "-o", "no/folder/x.yaml"], "no folder no/folder"),
        (["six.yaml", "-o", "."], "is a folder; name a file"),
        (["six.yaml", "-o", "x.yaml", "--arm", "revertet"], "no arm 'revertet'; did you mean 'reverted'?"),
        (["six.yaml", "-o", "x.yaml", "--revert", "19896"], "19896"),
        (["six.yaml", "-o", "x.yaml", "--confidence", "95"], "--confidence"),
        (["six.yaml", "-o", "x.yaml", "--device", "gpu"], "--device must be"),
        (["six.yaml", "-o", "x.yaml", "--json-file", "no/folder/x"], "no folder no/folder"),
        (["six.yaml"], "--output"),
    ],
)
def test_a_mistake_is_one_line_and_costs_no_trial(refused: Callable[..., str], argv: list[str], words: str) -> None:
    assert words in refused("minimise", *argv)
    assert not Path("x.yaml").exists()
    assert not Path(".specdebug").exists()


@pytest.mark.slow
def test_the_two_requests_that_meet_the_bug_are_left_and_the_file_fails_every_time() -> None:
    ended = spawn("minimise", "six.yaml", "-o", "small.yaml", "--json-file", "told.json")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(Path("told.json").read_text())
    assert told["requests"] == {"before": 6, "after": 2}
    assert told["steps"][0]["kept"] == ["plain", "drafting"]
    assert not told["steps"][0]["unconfirmed"]
    assert told["signature"].startswith("nan@draft")
    small = load_scenario("small.yaml")
    plain, drafting = small.workload
    assert isinstance(plain.prompt, SharedPrefixPrompt)
    assert isinstance(drafting.prompt, SharedPrefixPrompt)
    assert plain.prompt.name == drafting.prompt.name
    for _ in range(2):
        replayed = spawn("replay", "small.yaml", "--json")
        assert replayed.returncode == 0, replayed.stdout
        (arm,) = json.loads(replayed.stdout)["arms"]
        assert arm["signature"] == told["signature"]
    written = Path("small.yaml").read_bytes()
    again = spawn("minimise", "six.yaml", "-o", "small.yaml", "--json")
    repeated: dict[str, Any] = json.loads(again.stdout)
    assert repeated["resumed"] == repeated["trials"] == told["trials"]
    assert Path("small.yaml").read_bytes() == written


def test_the_stage_that_made_the_failure_rarer_says_so() -> None:
    progress = MinimiseProgress(stream := io.StringIO())
    for left in ((3, 3), (1, 3)):
        progress.ended(StageResult("requests", ("more",), ("plain",), (), 4, left, rarer(left, (5, 5))))
    same, told = stream.getvalue().splitlines()
    assert "rarer" not in same
    assert "1 of 3 times" in told


def test_the_file_does_not_say_how_much_of_the_search_was_resumed() -> None:
    whole_one = load_scenario("six.yaml")
    small = replace(whole_one, arms={"reverted": whole_one.arms["reverted"]})
    step = StageResult("requests", ("more",), ("plain",), (), 4)
    whole = Summary("done", small, "nan@draft", (), (5, 5), (12, 12), (7,), (step,), 30, 0)
    texts = {file_text(replace(whole, resumed=n), Minimisation("six", 6, "o.yaml", "j", 0.95), "six") for n in (0, 15)}
    assert len(texts) == 1
    assert "after 30 trials (4 of them for the requests)." in texts.pop()
