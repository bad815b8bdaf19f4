"""The table of sites, held against the probe calls in the source and against what passes in runs."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import specdebug.engine
from specdebug import async_probe
from specdebug.async_probe.sites import find_sites
from specdebug.diverge.rounding import GROUNDS
from specdebug.engine import SamplingParams
from specdebug.engine.sites import SITES, SiteRows, held_at, rows_per_request
from specdebug.engine.workers.registry import LINEUP, workers_at
from specdebug.events import BatchBegan, BatchEnded, Event, StageEntered
from tests.engine.conftest import Lab
from tests.engine.driving import build, run

SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"num_steps": 3, "eagle_topk": 1},
    "tree": {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6},
    "layers": {"algorithm": "MTP", "num_steps": 3, "eagle_topk": 1},
}


class Watch:
    """Holds every call of a site that hands over a tensor against the batch that is computed."""

    hears = (BatchBegan, BatchEnded, StageEntered)

    def __init__(self, shape: dict[str, Any], worker: str = "v2") -> None:
        self.worker = worker
        self.branches = shape["eagle_topk"]
        self.nodes = shape.get("num_draft_tokens", shape["num_steps"] + 1)
        # next-n layers go over the last positions of the step before once more
        self.extended = self.nodes + (shape["num_steps"] - 1 if "algorithm" in shape else 0)
        self.batches: list[BatchBegan] = []
        self.stage = ""
        self.reached: set[str] = set()
        self.wrong: list[str] = []

    def on(self, event: Event) -> None:
        match event:
            case BatchBegan():
                self.batches.append(event)
            case BatchEnded(kind):
                assert self.batches.pop().kind == kind
                self.stage = ""
            case StageEntered(stage):
                self.stage = stage

    def at_site(self, call: async_probe.SiteCall) -> None:
        self.reached.add(call.site)
        if not self.batches:
            return
        rows = (call.tensor if call.at is None else call.at).shape[0]
        allowed = self.allowed(call.site)
        if allowed is not None and not (rows == allowed or (held_at(call.site).padded and rows > allowed)):
            self.wrong.append(f"{call.site}: {rows} rows in a {self.batches[-1].kind} batch, not {allowed}")

    def allowed(self, site: str) -> int | None:
        batch, held = self.batches[-1], held_at(site)
        count = len(batch.requests)
        if held.rows == "written" and (self.worker, self.stage, batch.kind) == ("v1", "extend", "speculative"):
            return None  # a row for each accepted token
        if held.rows == "written":
            return {
                "prefill": sum(batch.lens),
                "plain": count,
                "speculative": count * {"draft": self.branches, "extend": self.extended}.get(self.stage, self.nodes),
            }[batch.kind]
        if held.rows == "tokens":
            return sum(batch.lens)
        each = rows_per_request(site, branches=self.branches, nodes=self.nodes)
        return None if each is None else each * count


@pytest.fixture(autouse=True)
def _nobody_listens() -> Iterator[None]:
    yield
    async_probe.on_site(None)


def test_every_probe_call_of_the_engine_is_in_the_table_and_nothing_else() -> None:
    assert set(SITES) == {site.name for site in find_sites(Path(specdebug.engine.__file__).parent)}


def test_whoever_names_a_site_names_one_of_the_table() -> None:
    assert {name for site, grounds in GROUNDS.items() for name in (site, *grounds)} <= set(SITES)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "worker", "shape", "latent"),
    [
        *product(("EAGLE",), ("v1", "v2"), ("chain", "tree"), (False,)),
        *product(("EAGLE",), ("v2",), ("chain", "tree"), (True,)),
        *product(("FROZEN_KV_MTP",), ("v2",), ("chain", "tree"), (False,)),
        ("MTP", "v2", "layers", False),
    ],
)
def test_the_rows_that_pass_are_as_the_table_says(
    lab: Lab, latent_lab: Lab, algorithm: str, worker: str, shape: str, latent: bool, graphs: bool
) -> None:
    """Of the worker v1 every site that v2 has, but for the graph of an extend that it runs eagerly. Of models with keys
    and values by head, and of those whose values are columns of keys."""
    lab = latent_lab if latent else lab
    draft = lab.next_n(3) if shape == "layers" else lab.draft(algorithm)
    speculative = {**SHAPES[shape], "algorithm": algorithm, "draft_model": str(draft), "worker": worker}
    engine = build(
        {
            "model": str(lab.target),
            "context_length": 64,
            "page_size": 4,
            "max_running_requests": 4,
            "chunked_prefill_size": 7,
            "cuda_graph": {"enabled": graphs, "max_bs": 4, "capture_bs": [4]},
            "memory": {"num_slots": 512},
            "speculative": speculative,
        }
    )
    watch = Watch(SHAPES[shape], worker)
    engine.observers.add(watch)
    async_probe.on_site(watch.at_site)
    for n, (temperature, drafts) in enumerate([(0.0, True), (0.8, True), (0.0, False)]):
        sampling = SamplingParams(max_new_tokens=10, temperature=temperature, top_k=5, top_p=0.9)
        engine.add_request(f"r{n}", [3, 1, 4, 1, 5, 9, 2, 6, n], sampling, speculative=drafts)
    run(engine)
    assert watch.wrong == []
    only_trees = {name for name in SITES if name.startswith(("tree.", "draft.select.", "draft.organize."))}
    only_trees |= {"commit.compact.rows", "draft.prefix_tail", "move_kv_cache.src_loc", "move_kv_cache.tgt_loc"}
    only_graphs = {name for name in SITES if "_graph." in name}
    who = "MLA" if latent else algorithm if algorithm in LINEUP else f"{algorithm} {worker}"
    passed = {name for name in SITES if who in workers_at(name)}
    assert watch.reached == passed - (set() if shape == "tree" else only_trees) - (set() if graphs else only_graphs)


def test_a_site_that_a_toggle_brings_is_cut_evenly() -> None:
    assert held_at("toggle.own.site") == SiteRows("even")
    assert rows_per_request("toggle.own.site", branches=2, nodes=6) is None
