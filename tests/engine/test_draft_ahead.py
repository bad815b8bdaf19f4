"""Drafting for the next step before this step's tokens are read, as a GPU engine does; here on a CPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from specdebug.engine import Engine
from specdebug.engine.request import Request
from tests.engine.conftest import Lab
from tests.engine.driving import build, greedy, run, serve

CONTEXT = 40


def engine(lab: Lab, *, ahead: bool, **changes: Any) -> Engine:
    base = {
        "model": str(lab.target),
        "context_length": CONTEXT,
        "max_running_requests": 4,
        "cuda_graph": {"max_bs": 4},
        "memory": {"num_slots": 512, "fill": "garbage", "guards": True},
        "speculative": {"draft_model": str(lab.eagle), "num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6},
    }
    served = build(base, **changes)
    assert served._eagle_worker is not None
    served._eagle_worker._drafts_ahead = ahead
    return served


def drafts(served: Engine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The lengths of every draft loop from now on, as the host gave them."""
    worker = served._eagle_worker
    assert worker is not None
    lengths: list[tuple[int, ...]] = []
    original = worker._drafted

    def counted(requests: list[Request], lens_cpu: tuple[int, ...]) -> Any:
        lengths.append(lens_cpu)
        return original(requests, lens_cpu)

    monkeypatch.setattr(worker, "_drafted", counted)
    return lengths


@pytest.mark.parametrize("plan", ["flashinfer", "fa3", "triton"])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("graphs", [False, True])
def test_gives_the_same_tokens_up_to_the_end_of_the_context(
    lab: Lab, plan: str, page_size: int, graphs: bool
) -> None:
    options = {"attention_backend": plan, "page_size": page_size, "cuda_graph": {"enabled": graphs}}
    prompts = [[1 + n, 5, 9, 2][: n + 1] for n in range(4)]
    outputs = [
        serve(engine(lab, ahead=ahead, **options), prompts, CONTEXT - max(map(len, prompts))) for ahead in (False, True)
    ]
    assert outputs[0] == outputs[1]


def test_is_used_while_the_batch_stays_and_redone_when_it_changes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    served = engine(lab, ahead=True)
    lengths = drafts(served, monkeypatch)
    for name, tokens in (("long", 20), ("short", 6)):
        served.add_request(name, [3, 7, 1], greedy(tokens))
    reports = run(served)
    assert {len(batch) for batch in lengths} == {1, 2}
    decodes = [report.rids for report in reports if report.kind == "decode"]
    changes = sum(before != after for before, after in pairwise(decodes))
    assert changes == 1
    # the first batch and the one after the change are drafted when they are due, all others one step before
    assert len(lengths) == len(decodes) + 1 + changes


def test_stops_where_a_request_could_be_past_its_context(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    served = engine(lab, ahead=True)
    lengths = drafts(served, monkeypatch)
    serve(served, [[3, 7, 1]], CONTEXT - 3)
    assert max(max(batch) for batch in lengths) <= CONTEXT
