"""Tables in different rooms that must name the same things: what is added to one belongs in all of them."""

import pytest

from specdebug.base.attention_plans import SHIPPED, AttentionPlan
from specdebug.engine.attention.backend import planner_class
from specdebug.engine.textbook.attention.planner import AttentionPlanner
from specdebug.faults.acts.tensors import INDEX_SITES, NUMBER_SITES
from specdebug.faults.catalogue import CLASSES
from specdebug.scenario.library import engine_sites

PAGES = "page_aligned"


@pytest.mark.parametrize("plan", SHIPPED, ids=lambda plan: plan.name)
def test_a_plan_names_every_module_that_holds_lines_of_its_planners(plan: AttentionPlan) -> None:
    """Which fixes exist under a plan follows from these modules."""
    planners = [planner_class(plan.name, layout) for layout in ("mha", "mla")]
    lines = {each for planner in planners for each in planner.__mro__ if issubclass(each, AttentionPlanner)}
    written_in = {each.__module__ for each in lines}
    assert set(plan.modules) == written_in - {AttentionPlanner.__module__}


def test_every_site_that_looks_at_values_is_damaged_by_some_class() -> None:
    """Alignment of pages is the engine's own arithmetic: no class acts there."""
    kinds = {(site.name, "index" if site.kind == "oob" else "number") for site in engine_sites() if site.kind != PAGES}
    damaged = {name for kind in CLASSES.values() for name in kind.sites}
    assert {name for name, _ in kinds} == damaged
    assert {(name, "index") for name in INDEX_SITES} | {(name, "number") for name in NUMBER_SITES} <= kinds
