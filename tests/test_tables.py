"""Tables in different rooms that must name the same things: what is added to one belongs in all of them."""

from __future__ import annotations

import typing

from specdebug.cli.options import Backend
from specdebug.engine.attention import select
from specdebug.engine.config import EngineConfig
from specdebug.engine.engine import PLANNERS
from specdebug.faults.catalogue import CLASSES
from specdebug.loops import plans
from specdebug.scenario.library import engine_sites
from specdebug.workers.stack import PLANS


def test_every_attention_plan_is_known_everywhere() -> None:
    known = set(typing.get_args(typing.get_type_hints(EngineConfig)["attention_backend"]))
    assert set(PLANNERS) == known
    assert set(select._MAKERS) == known
    assert set(plans.PLANNERS) == known
    assert set(PLANS) == known
    assert set(Backend) == known


def test_every_planner_s_module_is_named_with_its_plan() -> None:
    """``loops/plans.py`` finds the plan of a fix by the module that its lines are in."""
    for plan, planner in PLANNERS.items():
        assert planner.__module__.rpartition(".")[2] in plans.PLANNERS[plan]


def test_every_site_that_looks_at_values_is_damaged_by_some_class() -> None:
    """Alignment of pages is the engine's own arithmetic: no class acts there."""
    looked_at = {site.name for site in engine_sites() if site.kind != "page_aligned"}
    damaged = {name for kind in CLASSES.values() for name in kind.sites}
    assert looked_at - damaged == set()
    assert damaged - looked_at == set(), "classes name sites that there are not"
