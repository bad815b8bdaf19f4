"""Every drawn scenario is one that its engine can be asked for, and comes again from the same numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.apps.hunt.draw import ARM, TOGETHER, drawn
from specdebug.engine.config import EngineConfig
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.text import load_tokenizer
from specdebug.scenario.workload import expand
from specdebug.targets.options import SPACES, options_of
from specdebug.targets.sglang.flags import reserved_tokens


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.integers(0, 2000), st.sampled_from(sorted(SPACES)))
def test_every_request_fits_its_engine(seed: int, number: int, kind: str) -> None:
    scenario = Scenario.from_dict(drawn(seed, number, options_of(kind)))
    config = EngineConfig.from_dict(scenario.engine_of(ARM))
    lengths: dict[str, int] = {}
    for request in expand(scenario, load_tokenizer("tiny"), scenario.seed).requests:
        before = lengths.get(request.continues or "", 0)
        lengths[request.rid] = before + len(request.new_ids) + request.sampling.max_new_tokens
    assert max(lengths.values()) <= config.context_length - reserved_tokens(scenario.engine_of(ARM))
    assert max(lengths.values()) + config.row_headroom <= config.usable_slots
    assert config.chunked_prefill_size is None or config.chunked_prefill_size % config.page_size == 0


def test_scenarios_in_a_row_share_an_engine_and_nothing_else() -> None:
    some = [drawn(3, number, options_of("sglang")) for number in range(3 * TOGETHER)]
    engines = [each["engine"] for each in some]
    assert all(engines[n] == engines[n - n % TOGETHER] for n in range(len(some)))
    assert len({str(each["workload"]) for each in some}) == len(some)
    assert some[5] == drawn(3, 5, options_of("sglang"))
    assert some[5] != drawn(4, 5, options_of("sglang"))


@pytest.mark.parametrize("kind", sorted(SPACES))
def test_a_short_hunt_meets_every_value(kind: str) -> None:
    space = SPACES[kind]
    engines = [drawn(0, number, options_of(kind))["engine"] for number in range(0, 24 * TOGETHER, TOGETHER)]
    assert {each["page_size"] for each in engines} == set(space.pages)
    assert {each["speculative"]["eagle_topk"] for each in engines} == set(space.topks)
    assert {each["attention_backend"] for each in engines} == set(space.plans)
    with_trees = {e["attention_backend"] for e in engines if e["page_size"] > 1 and e["speculative"]["eagle_topk"] > 1}
    assert with_trees <= set(space.pages_with_trees)
