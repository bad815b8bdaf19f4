"""Shipped scenarios in half precision, in workers: the same verdicts, and every near-tie told in full."""

import json
from collections.abc import Iterator

import pytest

from specdebug.campaign.loops.replay import Choices, replay
from specdebug.campaign.preload import PRELOAD
from specdebug.report.formats import to_json
from specdebug.report.replay import replay_report
from specdebug.scenario.library import Library
from specdebug.workers.pool import WorkerPool
from tests.run.fakes import text_of


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, PRELOAD) as workers:
        yield workers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"), [("topk_kv_indices", "bfloat16"), ("bigram_key", "bfloat16"), ("bigram_key", "float16")]
)
def test_a_scenario_ends_as_in_float32(pool: WorkerPool, name: str, dtype: str) -> None:
    library = Library()
    answer = replay(pool, library, library.scenario(name), Choices(engine={"dtype": dtype}))
    assert [result.met for result in answer.results] == [True, True], text_of(replay_report(answer))
    document = json.loads(to_json(replay_report(answer).document))
    for arm, result in zip(document["arms"], answer.results, strict=True):
        assert arm["stack"]["dtype"] == dtype
        told = [(request["rid"], tie) for request in arm["requests"] for tie in request["ties"]]
        assert len(told) == len(result.outcome.ties)
        for rid, tie in told:  # how many there are depends on the processor
            request = next(request for request in arm["requests"] if request["rid"] == rid)
            assert request["output_ids"][tie["position"]] == tie["token"] != tie["preferred"]
            assert 0 <= tie["margin"] <= tie["allowed"] < 1
