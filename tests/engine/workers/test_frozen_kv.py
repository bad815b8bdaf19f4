"""Frozen-KV drafting: what is drafted, what a step leaves for the next, and that no draft ever changes the output."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.engine import Engine, Request
from specdebug.engine.errors import EngineError
from specdebug.engine.workers.frozen_kv import FrozenKVDrafter
from tests.engine.assistants import target_states
from tests.engine.conftest import Lab
from tests.engine.driving import build, greedy, run, serve

CHAIN: dict[str, Any] = {"num_steps": 4, "eagle_topk": 1}
TREE: dict[str, Any] = {"num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 9}
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8], [1], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]]


@pytest.fixture(autouse=True)
def _every_probe_is_silent() -> Iterator[None]:
    async_probe.configure("record")
    yield
    found = async_probe.drain()
    async_probe.configure("off")
    assert found == []


def frozen(lab: Lab, speculative: dict[str, Any], **changes: Any) -> Engine:
    base = {
        "model": str(lab.target),
        "context_length": 64,
        "max_running_requests": 4,
        "cuda_graph": {"max_bs": 4, "capture_bs": [4]},
        "memory": {"num_slots": 512, "fill": "nan", "guards": True},
        "speculative": {"algorithm": "FROZEN_KV_MTP", "draft_model": str(lab.assistant), **speculative},
    }
    return build(base, **changes)


def test_a_step_keeps_the_targets_hidden_state_of_the_last_committed_position(lab: Lab) -> None:
    engine = frozen(lab, TREE, chunked_prefill_size=3)
    requests = [engine.add_request(f"r{n}", prompt, greedy(12)) for n, prompt in enumerate(PROMPTS[:2])]
    looked = 0
    while engine.has_work:
        engine.step()
        for request in requests:
            if request.row and request.output_ids:
                looked += 1
                check_kept(lab, engine, request)
    assert looked > 8


def check_kept(lab: Lab, engine: Engine, request: Request) -> None:
    kept = engine.view.state.gather(torch.tensor([request.row]))
    assert int(kept.seq_lens) == request.kv_len
    assert int(kept.bonus) == request.all_ids[request.kv_len]
    states, _ = target_states(lab.model, request.all_ids[: request.kv_len])
    torch.testing.assert_close(kept.hidden_states[0], states[-1], atol=1e-3, rtol=1e-3)


def test_there_is_no_draft_kv(lab: Lab) -> None:
    engine = frozen(lab, CHAIN)
    request = engine.add_request("r", PROMPTS[0], greedy(4))
    engine.step()
    assert [name for name, _ in engine.view.pools()] == ["target_kv"]
    assert request.unwritten_draft_slots is None
    with pytest.raises(ValueError, match="no draft KV"):
        engine.draft_kv(request, 0, 1)
    assert engine.draft_state([request]).seq_lens.tolist() == [len(PROMPTS[0])]
    with pytest.raises(EngineError, match="no graph runner of its extend"):
        engine.view.buffers("extend")


def test_nothing_is_written_but_the_targets_verify(lab: Lab) -> None:
    """Of the slots that a step reserves, drafting touches none."""
    engine = frozen(lab, TREE)
    engine.add_request("r", PROMPTS[0], greedy(12))
    engine.step()
    drafter, pool = engine.view.eagle.drafter, engine.view.memory.target
    assert isinstance(drafter, FrozenKVDrafter)
    rows = torch.tensor([engine.requests["r"].row])
    before = [side.clone() for layer in range(pool.num_layers) for side in pool.kv_buffer(layer)]
    drafter.draft(rows, drafter.state.gather(rows), torch.tensor([]), (len(PROMPTS[0]),))
    after = [side for layer in range(pool.num_layers) for side in pool.kv_buffer(layer)]
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(before, after, strict=True))


def test_a_slot_is_cached_under_its_own_token_alone(lab: Lab) -> None:
    """Prompts that part right behind a page share it: nothing in it depends on the next token."""
    engine = frozen(lab, CHAIN, page_size=4)
    serve(engine, [[5, 6, 7, 8, 9]], 2)
    engine.forget_finished()
    request = engine.add_request("again", [5, 6, 7, 8, 3], greedy(6))
    run(engine)
    assert request.cached_tokens == 4
    lab.oracle.check([5, 6, 7, 8, 3], request.output_ids, 6)
