"""The worker v1 from outside: what it serves, and whose each slot is after every step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.engine import Engine, Request, SamplingParams
from specdebug.engine.config import round_up
from specdebug.engine.errors import EngineError
from specdebug.engine.textbook.speculative.worker import StagedWorker
from specdebug.engine.workers.v1 import EagleWorkerV1
from specdebug.events import AheadBegan, Finishing, Launched, StageEntered
from tests.engine.conftest import Lab
from tests.engine.driving import build, run
from tests.engine.textbook.speculative.test_worker import CHAIN, TREE, Dense, Snapshots, base, prompts
from tests.heard import Heard

WIDE = {"num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 10}
SHAPES = {"chain": CHAIN, "two": {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6}, "four": WIDE}
STAGES = ["draft", "tree", "verify", "accept", "commit", "extend"]


def v1(lab: Lab, algorithm: str = "EAGLE", **speculative: Any) -> dict[str, Any]:
    return base(lab, algorithm, worker="v1", **speculative)


def serve(engine: Engine, asked: list[list[int]], **sampling: Any) -> list[Request]:
    """Requests that end one after another, so that the batch shrinks in the middle."""
    for n, prompt in enumerate(asked):
        params = SamplingParams(max_new_tokens=(9, 20, 13, 24)[n % 4], seed=n, **sampling)
        engine.add_request(f"r{n}", prompt, params)
    run(engine)
    return list(engine.requests.values())


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3"])
@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_output_is_the_targets_own(
    lab: Lab, recording: None, algorithm: str, page_size: int, shape: str
) -> None:
    asked = prompts(lab, (30, 7, 51, 16))
    for graphs, chunk in ((True, None), (False, 9)):
        engine = build(
            v1(lab, algorithm, **SHAPES[shape]),
            page_size=page_size,
            chunked_prefill_size=chunk,
            cuda_graph={"enabled": graphs, "max_bs": 4, "capture_bs": [4]},
        )
        assert type(engine.view.worker) is EagleWorkerV1
        requests = serve(engine, asked)
        for request, prompt in zip(requests, asked, strict=True):
            lab.oracle.check(prompt, request.output_ids, request.sampling.max_new_tokens)
        assert max(max(request.accept_lengths) for request in requests) > 1
        assert async_probe.drain() == []
        engine.flush_cache()
        assert engine.view.memory.allocator.num_free == engine.config.usable_slots


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3"])
@pytest.mark.parametrize(
    ("page_size", "speculative", "backend", "chunk"),
    [(1, TREE, "flashinfer", 16), (4, CHAIN, "triton", None), (4, TREE, "fa3", 5), (16, TREE, "flashinfer", None)],
)
def test_kv_of_both_pools_is_the_dense_references_after_every_step(
    lab: Lab, algorithm: str, page_size: int, speculative: dict, backend: str, chunk: int | None
) -> None:
    """Rows that were rewritten, branches moved to the front, draft KV of accepted tokens alone."""
    engine = build(
        v1(lab, algorithm, **speculative), page_size=page_size, attention_backend=backend, chunked_prefill_size=chunk
    )
    for n, prompt in enumerate(prompts(lab)):
        engine.add_request(f"r{n}", prompt, SamplingParams(max_new_tokens=16))
    snapshots = Snapshots(engine)
    run(engine, snapshots)
    assert len(snapshots.taken) > 10
    snapshots.check(Dense(lab, algorithm))


@pytest.mark.parametrize("page_size", [1, 4])
def test_after_hits_and_retractions_kv_is_the_dense_references(lab: Lab, page_size: int) -> None:
    slots = {1: 130, 4: 140}[page_size]
    engine = build(v1(lab, **TREE), page_size=page_size, chunked_prefill_size=40, memory={"num_slots": slots})
    shared = prompts(lab, (64,))[0]
    for n in range(4):
        leaves = 60 - 4 * n
        engine.add_request(
            f"r{n}", [*shared[:leaves], (shared[leaves] + 1) % lab.vocab, n], SamplingParams(max_new_tokens=24)
        )
    snapshots = Snapshots(engine)
    run(engine, snapshots)
    requests = engine.requests.values()
    assert sum(request.retractions for request in requests) > 0
    assert sum(request.cached_tokens > 0 for request in requests) > 0
    snapshots.check(Dense(lab, "EAGLE"))


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_request_that_ends_leaves_draft_kv_of_all_that_it_committed(lab: Lab, page_size: int) -> None:
    """Upstream leaves it out of the extend, and whoever hits what it leaves drafts from guesses."""
    engine, kv = build(v1(lab, **TREE), page_size=page_size), dict[str, tuple[torch.Tensor, torch.Tensor]]()

    def keep(ending: Finishing) -> None:
        kv[ending.request.rid] = engine.draft_kv(ending.request, 0, ending.request.kv_len)

    engine.observers.add(Heard(Finishing, then=keep))
    requests = serve(engine, prompts(lab))
    assert any(sum(each.accept_lengths) > len(each.output_ids) - 1 for each in requests), "none ends inside a path"
    dense = Dense(lab, "EAGLE")
    for request in requests:
        for got, want in zip(kv[request.rid], dense.kv(request.all_ids)["draft"], strict=True):
            torch.testing.assert_close(got, want[:, : got.shape[1]], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_v1_and_v2_serve_the_same_by_the_same_drafts(lab: Lab, page_size: int, shape: str, temperature: float) -> None:
    told = []
    for worker in ("v1", "v2"):
        engine = build(base(lab, worker=worker, **SHAPES[shape]), page_size=page_size, chunked_prefill_size=20)
        requests = serve(engine, prompts(lab), temperature=temperature, top_p=0.9, stop_token_ids=(lab.vocab // 2,))
        told.append([(each.output_ids, each.accept_lengths, each.finish_reason) for each in requests])
    assert told[0] == told[1]


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_nothing_is_held_in_reserve(lab: Lab, page_size: int) -> None:
    engine = build(v1(lab, **WIDE), page_size=page_size, radix_cache=False)
    for n, prompt in enumerate(prompts(lab)):
        engine.add_request(f"r{n}", prompt, SamplingParams(max_new_tokens=16))

    def look(_: object) -> None:
        held = [request for request in engine.requests.values() if request.row]
        assert all(request.kv_allocated == round_up(request.kv_len, page_size) for request in held)
        free = engine.view.memory.allocator.num_free
        assert free == engine.config.usable_slots - sum(request.kv_allocated for request in held)

    run(engine, look)


def test_observers_hear_the_six_stages_in_their_order_and_nothing_ahead(lab: Lab) -> None:
    engine = build(v1(lab, **TREE), cuda_graph={"max_bs": 4, "capture_bs": [4]})
    stages, launches, ahead = Heard(StageEntered), Heard(Launched), Heard(AheadBegan)
    for each in (stages, launches, ahead):
        engine.observers.add(each)
    serve(engine, prompts(lab))
    seen = [event.stage for event in stages.events]
    steps = len(seen) // len(STAGES)
    assert steps > 1
    assert seen == STAGES * steps
    assert {(launch.forward, launch.captured is None) for launch in launches.events} == {
        ("draft", False),
        ("verify", False),
    }
    assert ahead.events == []
    worker = engine.view.eagle
    assert isinstance(worker, StagedWorker)
    assert worker.drafts_ahead is False
    assert worker.runners.extend is None


def test_room_that_the_next_step_borrows_is_made_by_retraction_before_the_step(lab: Lab) -> None:
    """Slots are enough for what two requests hold, and not for what both would borrow."""
    engine = build(v1(lab, **WIDE), radix_cache=False, memory={"num_slots": 96})
    for n, prompt in enumerate(prompts(lab, (30, 34))):
        engine.add_request(f"r{n}", prompt, SamplingParams(max_new_tokens=20))
    reports = run(engine)
    assert [rid for report in reports for rid in report.retracted] == ["r1"]
    for n, prompt in enumerate(prompts(lab, (30, 34))):
        lab.oracle.check(prompt, engine.requests[f"r{n}"].output_ids, 20)


def test_a_step_that_finds_fewer_slots_than_were_made_room_for_says_so(lab: Lab) -> None:
    engine = build(v1(lab, **TREE), radix_cache=False, memory={"num_slots": 200})
    engine.add_request("r0", prompts(lab)[0], SamplingParams(max_new_tokens=20))
    engine.step()
    (request,) = engine.view.running
    rows, lens = torch.tensor([request.row]), torch.tensor([request.kv_len])
    memory, slots = engine.view.memory, engine.view.worker._slots  # type: ignore[union-attr]
    memory.alloc(memory.allocator.num_free - 3)
    with pytest.raises(EngineError, match="a verify needs 12 KV slots and 3 are free"):
        slots.take([request], rows, lens)
    with (
        pytest.raises(EngineError, match="a step needs 12 KV slots and 3 are free"),
        slots.draft([request], rows, lens),
    ):
        pass
