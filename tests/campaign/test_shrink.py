"""Parts taken away from a scenario: its requests, its numbers, and the file that the rest is written to."""

import textwrap
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from specdebug.base.assets import tokenizer_path
from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.base.yamlio import parse_yaml
from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.campaign.loops.warm import ArmAtFault
from specdebug.campaign.shrink import ScenarioSpace, ShrunkSource, scenario_text, written_out
from specdebug.scenario.checks import check_scenario, scenario_of
from specdebug.scenario.grammar import Arm, Scenario, TokenPrompt, WorkloadGroup
from specdebug.scenario.library import Library
from specdebug.scenario.workload import expand
from specdebug.targets.settings import parse_target
from specdebug.verdict.outcome import Outcome
from tests.scenario.engines import config_of

TEXT = """
name: many
engine:
  context_length: 256
  page_size: 4
  speculative: {num_steps: 3, eagle_topk: 2, num_draft_tokens: 6}
  cuda_graph: {max_bs: 4, capture_bs: [1, 2, 4]}
  memory: {num_slots: 512}
workload:
  - {id: cold, prompt: {corpus: stdlib, tokens: [20, 40]}, max_new_tokens: [2, 8]}
  - id: warm
    requests: 3
    prompt: {shared_prefix: {corpus: stdlib, tokens: 30}, suffix: {text: "import os"}}
    seed: 7
    arrive: {step: 2, every: 3, after: cold}
    abort: {after_steps: 4, requests: [1]}
  - id: talk
    turns: {clients: 2, rounds: 3, input_tokens: 10}
    max_new_tokens: 4
    arrive: {every: 2}
  - {id: last, prompt: {token_ids: [5, 6, 7]}, arrive: {after: warm, jitter: 3}}
arms:
  fixed: {}
  broken: {revert: [19897], engine: {max_running_requests: 4}, mode: record}
expect:
  broken: {verdict: fail, signature: "nan@*"}
"""

FAULTS = """
faults: [{fault: nan_kv_in_use, step: 900}]
arms:
  fixed: {}
  broken:
    revert: [19897]
    engine: {max_running_requests: 4}
    mode: record
    faults: [{fault: nan_kv_in_use, step: [3, 9], request: warm.2}, {fault: nan_kv_in_use, request: talk.1.0}]
expect:
  broken: {verdict: fail, signature: "nan@*"}
"""
FAULTY = TEXT[: TEXT.index("arms:")] + FAULTS


def scenario(text=TEXT):
    return scenario_of(parse_yaml(textwrap.dedent(text)))


def space(text=TEXT, arm="broken", reverts=()):
    return ScenarioSpace(scenario(text), arm, reverts)


def shrunk_to_the_end(found, drop=frozenset()):
    """Take away whatever can be."""
    stage = found.next_stage()
    found.took(drop, frozenset())
    current, stages = stage.without(drop), []
    while (stage := found.next_stage()) is not None:
        everything = frozenset(range(len(stage.labels)))
        gone = everything if stage.without(everything) is not None else frozenset({0})
        current = stage.without(gone)
        stages.append(stage.title)
        assert current is not None
        found.took(gone, frozenset())
        assert len(stages) < 60
    return current


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(tokenizer_path("tiny")))


def test_what_is_written_out_is_the_same_workload(tokenizer):
    """But for what is drawn for requests whose names had to change."""
    before = expand(scenario(), tokenizer, 3).requests
    after = expand(space().start, tokenizer, 3).requests
    for old, new in zip(before, after, strict=True):
        assert (old.delay, old.abort_after, old.speculative) == (new.delay, new.abort_after, new.speculative)
        assert (old.continues is None) == (new.continues is None)
        if old.group in ("cold", "last"):
            assert old == new
        if old.group == "warm":
            assert old.sampling.seed == new.sampling.seed
            assert len(old.new_ids) == len(new.new_ids)
    warm = [plan.new_ids[:30] for plan in after if plan.group.startswith("warm")]
    assert len(set(warm)) == 1


def test_every_shipped_scenario_written_out_is_one():
    for scenario in Library().scenarios():
        for arm in scenario.arms:
            check_scenario(written_out(scenario, arm)[0], None)


def test_faults_stay_with_the_requests_they_are_done_to():
    """Whose new names they have; what has a fault is not dropped, and the other arms' faults are not done."""
    found = space(FAULTY)
    assert [fault.request for fault in found.start.faults_of("broken")] == ["warm-2.0", "talk-1.0.0"]
    stage = found.next_stage()
    assert stage.without(frozenset({3})) is None
    assert stage.without(frozenset({0, 1, 2, 4, 6})) is not None
    assert [str(fault) for fault in space(FAULTY, "fixed").start.faults_of("fixed")] == ["nan_kv_in_use:step=900"]


def test_too_many_requests_to_tell_apart_are_refused():
    with pytest.raises(SpecDebugError, match="600 requests are more than the 512"):
        space("name: much\nworkload: [{requests: 600, prompt: {corpus: stdlib, tokens: 4}}]", "base")


def test_what_came_after_a_dropped_request_comes_after_what_that_came_after():
    found = space()
    without_warm = found.next_stage().without(frozenset({1, 2, 3}))
    assert without_warm.workload[-1].arrive.after == ("cold",)
    without_both = space().next_stage().without(frozenset({0, 1, 2, 3}))
    assert without_both.workload[-1].arrive.after == ()


def test_numbers_go_down_to_the_least_that_scenarios_may_have():
    smallest = shrunk_to_the_end(space())
    cold, *warm, talk, _, last = smallest.workload
    assert (cold.prompt.tokens, cold.max_new_tokens) == ((1, 1), (1, 1))
    assert {group.prompt.prefix.tokens for group in warm} == {(1, 1)}
    assert (talk.turns.rounds, talk.turns.input_tokens) == (1, (1, 1))
    assert (last.prompt.token_ids, last.arrive.jitter) == ((5,), 0)
    config = config_of(smallest, "broken")
    assert (config.page_size, config.max_running_requests, config.context_length) == (1, 1, 8)
    assert (config.cuda_graph.max_bs, config.cuda_graph.capture_bs) == (1, (1,))
    assert (config.speculative.eagle_topk, config.speculative.num_steps, config.speculative.tree_size) == (1, 1, 2)


def test_a_number_that_is_needed_is_found_by_halving():
    """A prompt of at least 23 tokens is needed: what is left is less than a fourth above it."""
    found = space(arm="fixed")
    found.next_stage()
    found.took(frozenset(range(1, 7)), frozenset())
    while (stage := found.next_stage()) is not None:
        gone = frozenset(
            index
            for index in range(len(stage.labels))
            if (left := stage.without(frozenset({index}))) is not None and left.workload[0].prompt.tokens[1] >= 23
        )
        found.took(gone, frozenset())
        current = stage.without(gone)
    assert 23 <= current.workload[0].prompt.tokens[1] <= 29


@settings(max_examples=30)
@given(st.data())
def test_whatever_is_left_is_a_scenario_and_its_file_reads_the_same(data):
    found = space(FAULTY)
    current = found.start
    while (stage := found.next_stage()) is not None:
        every = range(len(stage.labels))
        gone = data.draw(st.frozensets(st.sampled_from(every)))
        if (left := stage.without(gone)) is None:
            gone, left = frozenset(), stage.without(frozenset())
        found.took(gone, frozenset())
        current = left
    text = scenario_text(current, "many-minimal", 11, "nan@x", ["About: this # and that", "", "x" * 300])
    read = scenario_of(parse_yaml(text))
    assert read.workload == current.workload
    assert (read.seed, read.name) == (11, "many-minimal")
    assert config_of(read, "broken") == config_of(current, "broken")
    assert (read.probes, read.oracles, read.limits) == (current.probes, current.oracles, current.limits)
    assert [str(fault) for fault in read.faults_of("broken")] == [
        "nan_kv_in_use:step=3..9,request=warm-2.0", "nan_kv_in_use:request=talk-1.0.0",
    ]  # fmt: skip
    assert read.arms == current.arms
    assert read.expect["broken"].signatures == ("nan@x",)


def test_a_target_that_was_given_is_written() -> None:
    scenario = replace(space(FAULTY).start, target=parse_target("reference"))
    text = scenario_text(scenario, "small", 11, "nan@x", ["About: this"])
    assert scenario_of(parse_yaml(text)).target == scenario.target


SCENARIO = Scenario("s", (WorkloadGroup("g0", TokenPrompt((1, 2))),), {"only": Arm("only")}, {})


FAILED = Outcome("fail", "nan@draft.logits", "draft.logits", "", 1)
PASSED = Outcome("pass", None, None, "", None)


class Pool:
    """Ends arms as it was told to."""

    capacity = 2

    def __init__(self) -> None:
        self.ends: deque[Any] = deque()
        self.started: list[ArmRun] = []

    def start(self, run: ArmRun) -> None:
        self.started.append(run)

    def wait(self) -> ArmResult:
        run, end = self.started.pop(0), self.ends.popleft()
        if isinstance(end, SpecDebugError):
            raise ArmAtFault(run, end)
        return ArmResult(run, end)


def test_a_fault_counts_only_once_something_could_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool()
    monkeypatch.setattr("specdebug.campaign.trials.scenario.WarmPool", lambda *_: pool)
    source = ShrunkSource(SimpleNamespace(start=SCENARIO, arm="only", origin={}), (), ())  # type: ignore[arg-type]
    fault = SpecDebugError("the corpus 'stdlib' has 3 tokens")
    trials = [Trial(number, frozenset(), number) for number in range(4)]
    for trial in trials:
        source.leave(trial.number, SCENARIO)
        source.start(trial)
    pool.ends.extend([fault, FAILED, fault, PASSED])
    with pytest.raises(SpecDebugError, match="has 3 tokens"):
        source.wait()
    assert [source.wait() for _ in range(3)] == [
        (trials[1], TrialResult("fail", "nan@draft.logits", 0.0, warm="cold", processor_s=0.0)),
        (trials[2], TrialResult("untestable", None, 0.0, str(fault))),
        (trials[3], TrialResult("pass", None, 0.0, warm="cold", processor_s=0.0)),
    ]
