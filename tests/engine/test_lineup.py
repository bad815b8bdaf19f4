"""The lineup has every worker of the engine, each with options that it can be built with."""

from __future__ import annotations

from itertools import product

import pytest

from specdebug.base.assets import NAMES
from specdebug.engine.config import EngineConfig
from specdebug.engine.sites import SITES
from specdebug.engine.workers.registry import LINEUP, SHIPPED, WorkerEntry, workers_at


def test_every_shipped_worker_is_in_it_once() -> None:
    served = [(entry.algorithm, entry.worker) for entry in LINEUP.values() if not entry.latent]
    made = {(name, "v2") for name in SHIPPED} | {(name, "v1") for name, each in SHIPPED.items() if each.v1 is not None}
    # EAGLE-3 has other features and the same workers.
    assert sorted(served) == sorted(each for each in made if each[0] != "EAGLE3")


@pytest.mark.parametrize(("name", "steps", "topk"), list(product(LINEUP, (1, 3, 5), (1, 4))))
def test_any_shape_becomes_one_that_the_worker_has(name: str, steps: int, topk: int) -> None:
    nodes = min(9, 1 + topk + topk**2 * (steps - 1)) if topk > 1 else steps + 1
    config = EngineConfig.from_dict(LINEUP[name].options(steps, topk, nodes))
    assert config.draft_model in NAMES
    spec = config.speculative
    assert spec is not None
    assert (spec.num_steps, spec.eagle_topk, spec.tree_size) == ((3, 1, 4) if name == "MTP" else (steps, topk, nodes))


def test_every_site_is_passed_by_some_worker_and_every_worker_passes_some_that_another_does_not() -> None:
    assert all(workers_at(site) for site in SITES)
    passed = {name: frozenset(site for site in SITES if entry.passes(site)) for name, entry in LINEUP.items()}
    assert len(set(passed.values())) == len(passed)
    assert workers_at("kv_pool.write.v") == ("EAGLE v2", "EAGLE v1", "MTP", "FROZEN_KV_MTP")
    assert WorkerEntry("EAGLE3", algorithm="EAGLE3").passes("draft.forward.logits")
