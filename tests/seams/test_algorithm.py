"""A speculative algorithm from outside: its draft model's loader, and the KV pool of that draft model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.seams.installing import Install, installing
from tests.seams.test_target import replay

__all__ = ["installing"]

PACKED = '''
import os
from pathlib import Path

from specdebug.engine.textbook.memory.mha_pool import MHAPool
from specdebug.engine.model.loader import load_draft
from specdebug.engine.workers.registry import Algorithm


class PackedPool(MHAPool):
    """Stores as the shipped pool does, and leaves a note that it was made."""

    def __init__(self, model, **options):
        sizes = {name: getattr(model, name) for name in ("num_layers", "num_kv_heads", "head_dim")}
        super().__init__(**sizes, **options)
        Path(os.environ["PACKED_POOLS"]).open("a").write("made;")


def load_head(path, *, algorithm, **options):
    head = load_draft(path, algorithm="EAGLE", **options)
    head.kv_layout = "packed"
    return head


PACKED = Algorithm("specdebug.engine.textbook.speculative.worker:EagleWorker", "packing:load_head")
'''

SCENARIO = """
name: outside
engine:
  context_length: 128
  max_running_requests: 2
  speculative: {{algorithm: {algorithm}, draft_model: tiny-eagle, num_steps: 3}}
  cuda_graph: {{max_bs: 2}}
  memory: {{num_slots: 512}}
workload:
  - {{requests: 2, prompt: {{corpus: stdlib, tokens: [8, 12]}}, max_new_tokens: 8}}
"""


def test_a_scenario_names_an_algorithm_whose_draft_model_has_a_pool_of_its_own(
    installing: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    monkeypatch.setenv("PACKED_POOLS", str(made))
    points = {"algorithms": {"PACKED": "packing:PACKED"}, "kv_pools": {"packed": "packing:PackedPool"}}
    folder = installing("packing", PACKED, points)
    outcomes = {}
    for algorithm in ("PACKED", "EAGLE"):
        file = tmp_path / f"{algorithm}.yaml"
        file.write_text(SCENARIO.format(algorithm=algorithm))
        done = replay(folder, str(file), "--json")
        assert done.returncode == 0, done.stderr
        (outcomes[algorithm],) = json.loads(done.stdout)["arms"]
    packed, eagle = outcomes["PACKED"], outcomes["EAGLE"]
    assert packed["requests"] == eagle["requests"]
    assert packed["trace_hash"] == eagle["trace_hash"]
    assert made.read_text() == "made;", "by the one arm whose draft model asks for it"
