"""Numbers made smaller."""

import textwrap

from specdebug.base.yamlio import parse_yaml
from specdebug.campaign.shrink import made_consistent
from specdebug.scenario.checks import scenario_of
from tests.campaign.shrink.spaces import shrunk_to_the_end, space
from tests.scenario.engines import config_of


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


def test_text_prompts_are_cut_but_never_to_white_space():
    text = """
    name: words
    workload: [{prompt: {text: "  def main(): return 0"}}]
    """
    smallest = shrunk_to_the_end(space(text, "base"))
    assert smallest.workload[0].prompt.text.strip()


def test_a_chain_s_nodes_follow_its_steps_wherever_they_come_from():
    text = """
    name: layers
    engine: {speculative: {algorithm: MTP, num_draft_tokens: 4}}
    workload: [{prompt: {text: a}}]
    """
    made = made_consistent(scenario_of(parse_yaml(textwrap.dedent(text))))
    assert config_of(made, "base").speculative.tree_size == 4
