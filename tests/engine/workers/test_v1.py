"""The worker v1 from outside: what it serves, and whose each slot is after every step."""

from typing import Any

import pytest
import torch

from specdebug.engine import Engine, Request, SamplingParams
from specdebug.engine.errors import EngineError
from specdebug.events import Finishing
from tests.engine.conftest import Lab
from tests.engine.driving import build, run
from tests.engine.textbook.speculative.test_worker import CHAIN, TREE, Dense, Snapshots, base, prompts
from tests.heard import Heard

WIDE = {"num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 10}
SHAPES = {"chain": CHAIN, "two": {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6}, "four": WIDE}


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
def test_a_request_that_ends_leaves_draft_kv_of_all_that_it_committed(lab: Lab, page_size: int) -> None:
    """Upstream leaves it out of the extend, and a hit on what it leaves drafts from guesses."""
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
