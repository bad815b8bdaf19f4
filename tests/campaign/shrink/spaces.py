"""A scenario that has all that can be taken away, and what is left of it."""

import textwrap

from specdebug.base.yamlio import parse_yaml
from specdebug.campaign.shrink import ScenarioSpace
from specdebug.scenario.checks import scenario_of

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


def ids(found):
    return [group.id for group in found.workload]


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
