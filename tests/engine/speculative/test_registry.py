"""A worker of another package serves an engine as soon as its algorithm is registered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from torch import Tensor

from specdebug.engine import EngineConfig, Request
from specdebug.engine.config import InvalidOption
from specdebug.engine.errors import EngineError
from specdebug.engine.memory.arena import GuardViolation
from specdebug.engine.speculative import registry
from specdebug.engine.speculative.protocol import SpeculativeWorker, WorkerParts
from specdebug.engine.speculative.registry import Algorithm, algorithm_names, register
from tests.engine.conftest import Lab
from tests.engine.driving import build, greedy, run

TOKEN = 5


class Guesses:
    """Emits two tokens a step and asks no model: a worker with nothing of EAGLE in it."""

    def __init__(self, parts: WorkerParts) -> None:
        self.parts = parts
        self.prefilled: list[str] = []

    def prefill(self, batch: Any, next_ids: Tensor, features: Tensor) -> None:
        self.prefilled += [request.rid for request in batch.requests]

    def decode(self, requests: Sequence[Request]) -> list[list[int]]:
        return [[TOKEN, TOKEN] for _ in requests]

    def check_guards(self) -> list[GuardViolation]:
        return []

    def damage_seen(self) -> list[GuardViolation]:
        return []


@pytest.fixture
def guessing(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(registry, "_algorithms", dict(registry._algorithms))
    register("GUESS", Algorithm(f"{__name__}:Guesses", "specdebug.engine.model.loader:load_draft"))
    return "GUESS"


def test_a_registered_worker_serves(lab: Lab, guessing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_imported", lambda path: Guesses if path.endswith(":Guesses") else _eagle_head)
    engine = build(
        {
            "model": str(lab.target),
            "context_length": 64,
            "speculative": {"algorithm": guessing, "draft_model": str(lab.eagle)},
        }
    )
    worker = engine.view.worker
    assert isinstance(worker, Guesses)
    request = engine.add_request("r", [3, 7, 1], greedy(5))
    run(engine)
    assert request.output_ids[1:] == [TOKEN] * 4
    assert request.accept_lengths == [2, 2]
    assert worker.prefilled == ["r"]
    with pytest.raises(EngineError, match="no EAGLE worker"):
        _ = engine.view.eagle


def _eagle_head(path: Any, *, algorithm: str, **options: Any) -> Any:
    from specdebug.engine.model.loader import load_draft

    assert algorithm == "GUESS"
    return load_draft(path, algorithm="EAGLE", **options)


def test_the_shipped_worker_is_one_of_the_protocol(lab: Lab) -> None:
    speculative = {"draft_model": str(lab.eagle), "num_steps": 2}
    engine = build({"model": str(lab.target), "context_length": 64, "speculative": speculative})
    worker: SpeculativeWorker = engine.view.eagle
    assert worker is engine.view.worker


def test_a_name_is_taken_once_and_an_unknown_one_is_named_with_those_there_are(guessing: str) -> None:
    with pytest.raises(ValueError, match="'EAGLE' is registered already"):
        register("EAGLE", Algorithm("a:b", "c:d"))
    assert algorithm_names() == ("EAGLE", "EAGLE3", "GUESS")
    with pytest.raises(InvalidOption, match="must be one of EAGLE, EAGLE3, GUESS; got 'MTP'"):
        EngineConfig.from_dict({"speculative": {"algorithm": "MTP"}})
