"""A speculative worker of another distribution serves an engine once it is installed; the line-up has each of ours."""

from itertools import product

import pytest

from specdebug.base.assets import NAMES
from specdebug.base.errors import InvalidOption
from specdebug.base.plugins import PluginError
from specdebug.engine.config import EngineConfig
from specdebug.engine.errors import EngineError
from specdebug.engine.sites import SITES
from specdebug.engine.workers.registry import ALGORITHMS, LINEUP, SHIPPED, WorkerEntry, workers_at
from tests.engine.conftest import Lab
from tests.engine.driving import build, greedy, run
from tests.seams.conftest import Install, installing

__all__ = ["installing"]

GUESSES = '''
from specdebug.engine.model.loader import load_draft
from specdebug.engine.workers.registry import Algorithm


class Guesses:
    """Emits two tokens a step and asks no model: a worker with nothing of EAGLE in it."""

    def __init__(self, parts):
        self.parts, self.prefilled = parts, []

    def prefill(self, batch, next_ids, features):
        self.prefilled += [request.rid for request in batch.requests]

    def decode(self, requests):
        return [[5, 5] for _ in requests]

    def check_guards(self):
        return []

    def damage_seen(self):
        return []


def load_head(path, *, algorithm, **options):
    assert algorithm == "GUESS"
    return load_draft(path, algorithm="EAGLE", **options)


GUESS = Algorithm("guessing:Guesses", "guessing:load_head")
'''


def test_a_worker_of_another_distribution_serves(lab: Lab, installing: Install) -> None:
    installing("guessing", GUESSES, {"algorithms": {"GUESS": "guessing:GUESS"}})
    engine = build(
        {
            "model": str(lab.target),
            "context_length": 64,
            "speculative": {"algorithm": "GUESS", "draft_model": str(lab.eagle)},
        }
    )
    worker = engine.view.worker
    assert type(worker).__module__ == "guessing"
    request = engine.add_request("r", [3, 7, 1], greedy(5))
    run(engine)
    assert request.output_ids[1:] == [5] * 4
    assert request.accept_lengths == [2, 2]
    assert worker.prefilled == ["r"]
    with pytest.raises(EngineError, match="no EAGLE worker"):
        _ = engine.view.eagle


def test_an_unknown_name_is_answered_with_those_there_are(installing: Install) -> None:
    installing("guessing", GUESSES, {"algorithms": {"GUESS": "guessing:GUESS"}})
    assert tuple(ALGORITHMS) == ("EAGLE", "EAGLE3", "MTP", "FROZEN_KV_MTP", "GUESS")
    with pytest.raises(InvalidOption, match="cannot be 'NGRAM'; known: EAGLE, EAGLE3, FROZEN_KV_MTP, GUESS, MTP"):
        EngineConfig.from_dict({"speculative": {"algorithm": "NGRAM"}})


def test_a_worker_that_is_not_there_is_named(lab: Lab, installing: Install) -> None:
    source = GUESSES.replace('"guessing:Guesses"', '"guessing:Answers"')
    installing("guessing", source, {"algorithms": {"GUESS": "guessing:GUESS"}})
    speculative = {"algorithm": "GUESS", "draft_model": str(lab.eagle)}
    with pytest.raises(PluginError, match="the worker of algorithm 'GUESS' cannot be loaded from guessing:Answers"):
        build({"model": str(lab.target), "context_length": 64, "speculative": speculative})


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
