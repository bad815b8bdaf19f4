"""Everything a soak draws can be served, comes again from the same names, and covers what it says it covers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.soak import draw
from benchmarks.soak.tally import kinds_of
from specdebug.engine.config import EngineConfig
from specdebug.scenario.grammar import OracleSpec, Scenario
from specdebug.scenario.text import load_tokenizer
from specdebug.scenario.workload import expand


@given(st.integers(0, 2**31), st.integers(0, 40), st.sampled_from([(1, 2), (5, 5, 7), ("a", "b", "c", "d")]), st.data())
def test_each_value_has_its_turn_in_every_block(
    seed: int, block: int, values: tuple[object, ...], data: st.DataObject
) -> None:
    worker = data.draw(st.integers(0, 3))
    numbers = range(block * len(values), (block + 1) * len(values))
    got = [draw.dealt(seed, worker, number, "option", values) for number in numbers]
    assert Counter(got) == Counter(values)


@pytest.mark.parametrize("worker", [0, 1])
def test_three_elders_have_all_plans_and_few_engines_have_every_kind(worker: int) -> None:
    engines = [draw.engine(7, worker, number) for number in range(12)]
    assert {options["attention_backend"] for options in engines[:3]} == set(draw.PLANS)
    kinds = [kinds_of(options) for options in engines]
    seen = {option: {kind[option] for kind in kinds} for option in kinds[0]}
    assert seen["page size"] == {"1", "4", "16", "256"}
    assert seen["algorithm"] == {"EAGLE", "EAGLE v1", "EAGLE3", "FROZEN_KV_MTP", "MTP"}
    assert seen["model"] == {"tiny", "tiny-mla"}
    assert {"1", "2"} < seen["topk"]
    assert seen["graphs"] == {"without", "one size", "sizes"}
    assert seen["draft KV on a hit"] == {"recompute", "zero_fill", "none"}
    assert seen["cache"] == {"radix", "none"}
    assert all(options["memory"]["guards"] for options in engines)


def test_engines_share_the_models_that_are_loaded_once() -> None:
    configs = [EngineConfig.from_dict(draw.engine(3, 1, number)) for number in range(40)]
    assert {config.reach for config in configs} == {draw.REACH}


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.integers(0, 3), st.integers(0, 500), st.integers(0, 500))
def test_every_request_fits_its_engine(seed: int, worker: int, number: int, nth: int) -> None:
    scenario = Scenario.from_dict(draw.scenario(seed, worker, number, nth))
    config = EngineConfig.from_dict(scenario.engine_of("base"))
    workload = expand(scenario, load_tokenizer(draw.TOKENIZER), scenario.seed)
    lengths: dict[str, int] = {}
    for request in workload.requests:  # a conversation comes round by round
        before = lengths.get(request.continues or "", 0)
        lengths[request.rid] = before + len(request.new_ids) + request.sampling.max_new_tokens
    assert max(lengths.values()) <= config.context_length
    assert max(lengths.values()) + config.row_headroom <= config.usable_slots


def test_the_same_names_draw_the_same_and_others_do_not() -> None:
    name = (1, 0, 4, 9)
    assert draw.scenario(*name) == draw.scenario(*name)
    for other in ((2, 0, 4, 9), (1, 1, 4, 9), (1, 0, 5, 9), (1, 0, 4, 8)):
        assert draw.scenario(*other)["workload"] != draw.scenario(*name)["workload"]


def test_all_shapes_of_workloads_come_and_every_oracle_looks_at_them() -> None:
    drawn = [draw.scenario(0, 0, 0, nth) for nth in range(200)]
    assert all(Scenario.from_dict(scenario).oracles == OracleSpec() for scenario in drawn)
    groups = [group for scenario in drawn for group in scenario["workload"]]
    for key in ("temperature", "turns", "abort", "stop_token_ids"):
        assert any(key in group for group in groups)
    assert any(not group.get("speculative", True) for group in groups)
    assert any("shared_prefix" in group.get("prompt", {}) for group in groups)
