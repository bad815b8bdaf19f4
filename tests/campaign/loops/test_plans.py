"""Which fixes can be put to the test under which attention plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdebug.base.attention_plans import PLANS
from specdebug.campaign.loops.verify import exists_in
from specdebug.patching import Patch
from specdebug.patching.toggles import Detection, Toggle, load_registry


def toggle(target: str, *signatures: str) -> Toggle:
    patch = Patch.of("t", target, ("a = 1", "a = 2"))
    detected = Detection("s", signatures or ("guard@a->b",))
    return Toggle(1, (), "t", "u", "f", "s", "", detected, (patch,), {}, Path("x.yaml"))


def plans_of(found: Toggle) -> set[str]:
    return {plan for plan in PLANS if exists_in(found, plan)}


@pytest.mark.parametrize(
    ("target", "where"),
    [
        ("specdebug.engine.textbook.attention.flashinfer:FlashInferPlanner.draft_decode", {"flashinfer", "triton"}),
        ("specdebug.engine.attention.triton:TritonPlanner._splits", {"triton"}),
        ("specdebug.engine.attention.fa3:FlashAttention3Planner.draft_decode", {"fa3"}),
        ("specdebug.engine.textbook.attention.planner:AttentionPlanner.__init__", {"flashinfer", "fa3", "triton"}),
        ("specdebug.engine.config:EngineConfig.row_headroom", {"flashinfer", "fa3", "triton"}),
    ],
)
def test_a_fix_in_a_planner_exists_where_that_planner_s_lines_run(target: str, where: set[str]) -> None:
    assert plans_of(toggle(target)) == where


def test_a_fix_exists_only_where_what_notices_it_can_be_reached() -> None:
    anywhere = "specdebug.engine.graph.tables:pad_draft"
    assert plans_of(toggle(anywhere, "oob@draft.plan.kv_indptr")) == {"flashinfer", "triton"}
    assert plans_of(toggle(anywhere, "oob@draft_graph.replay.*")) == {"flashinfer", "fa3", "triton"}
    assert plans_of(toggle(anywhere, "mismatch@request")) == {"flashinfer", "fa3", "triton"}


def test_every_shipped_fix_exists_in_the_plan_of_its_own_scenario_at_least() -> None:
    from specdebug.scenario.library import Library

    library = Library()
    for found in load_registry().toggles.values():
        scenario = library.scenario(found.detected_by.scenario)
        assert exists_in(found, scenario.engine["attention_backend"]), found.pr
