"""What the workers share: what is read back of a step, the bonus token, and who is made with which parts."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.textbook.speculative.accept import Compacted
from specdebug.engine.textbook.speculative.worker import EagleWorker, StagedWorker, bonus_of, read_back
from specdebug.engine.workers.registry import ALGORITHMS, worker_of
from specdebug.engine.workers.v1 import EagleWorkerV1
from tests.engine.conftest import Lab
from tests.engine.driving import build
from tests.engine.textbook.speculative.test_worker import TREE, base

COMPACTED = Compacted(torch.tensor([5, 6, 7, 0, 8, 0, 0, 0]), torch.zeros(8, 2), torch.tensor([3, 1]))
"""Two requests with trees of four: three tokens accepted, and one."""


def test_what_is_read_back_are_lengths_and_predictions_and_what_is_asked_for() -> None:
    assert read_back(COMPACTED).wait() == [[3, 5, 6, 7, 0], [1, 8, 0, 0, 0]]
    index = torch.tensor([[0, 2, 3], [4, -1, -1]], dtype=torch.int32)
    assert read_back(COMPACTED, index).wait() == [[3, 5, 6, 7, 0, 0, 2, 3], [1, 8, 0, 0, 0, 4, -1, -1]]


def test_the_bonus_is_the_last_token_that_counts() -> None:
    assert bonus_of(COMPACTED, COMPACTED.accept_lengths).tolist() == [7, 8]
    assert bonus_of(COMPACTED, torch.tensor([2, 1])).tolist() == [6, 8]


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3"])
def test_an_algorithm_names_a_worker_for_each_discipline(algorithm: str) -> None:
    assert worker_of(algorithm) is worker_of(algorithm, "v2") is EagleWorker
    assert worker_of(algorithm, "v1") is EagleWorkerV1
    assert ALGORITHMS[algorithm].v1 is not None


@pytest.mark.parametrize(("worker", "forwards"), [("v1", {"draft", "verify"}), ("v2", {"draft", "verify", "extend"})])
def test_either_worker_has_runners_for_forwards_of_a_fixed_size(lab: Lab, worker: str, forwards: set[str]) -> None:
    engine = build(base(lab, worker=worker, **TREE))
    found = engine.view.eagle
    assert isinstance(found, StagedWorker)
    assert {name for name in ("draft", "verify", "extend") if getattr(found.runners, name) is not None} == forwards
