"""Whom the workers serve: shipped checkpoints, and next-n layers that are made of them."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open

from benchmarks.lossless.workers import WORKERS
from specdebug.base.assets import NAMES
from specdebug.engine.speculative.registry import ALGORITHMS


def test_every_algorithm_and_worker_has_a_place() -> None:
    drafts = {name: make for name, (_, make) in WORKERS.items() if name != "mtp"}
    found = {name: {(each.algorithm, each.worker) for each in make(Path())} for name, make in drafts.items()}
    assert found["v1"] == {(name, "v1") for name, each in ALGORITHMS.items() if each.v1}
    assert found["v2"] == {("EAGLE", "v2"), ("EAGLE3", "v2")}
    assert found["frozen-kv"] == {("FROZEN_KV_MTP", "v2")}
    assert found["mla"] == {("EAGLE", "v2"), ("EAGLE", "v1")}
    assert found["none"] == set()
    assert {target for target, _ in WORKERS.values()} <= set(NAMES)


def test_next_n_layers_are_made_of_the_shipped_ones(tmp_path: Path) -> None:
    shipped, *made = WORKERS["mtp"][1](tmp_path)
    assert (shipped.model, shipped.steps) == ("tiny-mtp", 3)
    kinds = []
    for each in made:
        config = json.loads((Path(each.model) / "config.json").read_text())
        with safe_open(Path(each.model) / "model.safetensors", "pt") as file:
            layers = {name.split(".")[2] for name in file.keys()}  # noqa: SIM118 - no mapping
        assert len(layers) == config["num_nextn_predict_layers"] == each.steps
        kinds.append((each.steps, config["mtp_chain_hidden_states"]))
    assert kinds == [(1, False), (2, False), (2, True), (3, True)]
