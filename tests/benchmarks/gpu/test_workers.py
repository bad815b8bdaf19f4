"""Steps of every worker in turn, on toy models on a CPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu import workers
from benchmarks.gpu.models import make_target
from specdebug.engine.speculative.registry import SHIPPED
from tests.benchmarks.gpu.test_models import SMALL


def test_every_algorithm_and_worker_has_a_row() -> None:
    asked = {(spec["algorithm"], spec.get("worker", "v2")) for spec in workers.KINDS.values()}
    known = {(name, "v2") for name in SHIPPED} | {(name, "v1") for name, one in SHIPPED.items() if one.v1 is not None}
    assert asked == known - {("EAGLE3", "v2"), ("EAGLE3", "v1")}  # which needs a target's inner layers


def test_all_take_steps_and_are_laid_beside_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "BATCHES", {2: (20, 2)})
    models = workers.draft_models(make_target(SMALL, torch.float32, "cpu", max_positions=6400))
    rows = {row.what: row for row in workers.step_rows(models, "triton", rounds=2, batch=2)}
    for kind in workers.KINDS:
        assert rows[f"{kind}, batch 2: a step"].median > 0
        assert 1 < rows[f"{kind}, batch 2: mean accept length"].median <= workers.STEPS + 1
    beside = [what for what in rows if " / " in what]
    assert len(beside) == len(workers.KINDS) - 2
    v1, v2 = (rows[f"EAGLE, worker {name}, batch 2: a step"] for name in ("v1", "v2"))
    ratio = rows["EAGLE, worker v1, batch 2: a step / EAGLE, worker v2's"]
    assert v1.low / v2.high <= ratio.low <= ratio.high <= v1.high / v2.low
