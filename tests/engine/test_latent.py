"""An engine of a model with latent attention: what it serves, stores and shows."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.base.attention_plans import SHIPPED
from specdebug.engine import Engine, EngineConfig
from tests.engine.conftest import Lab
from tests.engine.driving import build, greedy, run, serve
from tests.tolerance import rounding

NEAR = rounding(64, 64, 24, 24, 32, 16, 40, 60, 32, 96, 64, 64, 96, 64, times=4, size=2.0)
NEW = 20
PLANS = [plan.name for plan in SHIPPED]


@pytest.fixture(autouse=True)
def _every_probe_recording() -> Iterator[None]:
    async_probe.configure("record")
    yield
    async_probe.configure("off")


def options(lab: Lab, topk: int = 1, **changes: Any) -> dict[str, Any]:
    nodes = {} if topk == 1 else {"num_draft_tokens": 9}
    return {
        "model": str(lab.target),
        "context_length": 128,
        "max_running_requests": 3,
        "chunked_prefill_size": 16,
        "speculative": {
            "algorithm": "EAGLE",
            "draft_model": str(lab.eagle),
            "num_steps": 3,
            "eagle_topk": topk,
            **nodes,
        },
        "cuda_graph": {"max_bs": 3},
        "memory": {"num_slots": 1024, "fill": "nan", "guards": True},
        **changes,
    }


def prompts(lab: Lab) -> list[list[int]]:
    shared = [(7 * n * n + 3 * n) % lab.vocab for n in range(34)]
    return [[*shared, 1, 2], [*shared, 3], [5, 4, 3, 2, 1], shared[:20]]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("topk", [1, 4])
def test_output_is_plain_greedy_decoding(latent_lab: Lab, plan: str, page_size: int, topk: int) -> None:
    """With graphs, chunks, hits of a cached prefix and every probe on."""
    engine = build(options(latent_lab, topk, attention_backend=plan, page_size=page_size))
    asked = prompts(latent_lab)
    outputs = serve(engine, asked[:3], NEW)
    later = engine.add_request("later", asked[3], greedy(NEW))
    run(engine)
    for prompt, output in zip(asked, [*outputs, later.output_ids], strict=True):
        latent_lab.oracle.check(prompt, output, NEW)
    assert later.cached_tokens > 0
    assert max(length for request in engine.requests.values() for length in request.accept_lengths) > 1
    assert async_probe.drain() == []
    reached = set(async_probe.reached())
    assert {"kv_pool.write.k", "verify.logits"} <= reached
    assert "kv_pool.write.v" not in reached


def test_stored_rows_are_what_transformers_caches(latent_lab: Lab) -> None:
    engine = Engine(EngineConfig.from_dict(options(latent_lab, topk=4, page_size=4)))
    request = engine.add_request("r", prompts(latent_lab)[0], greedy(60))
    while request.kv_len < 60:
        engine.step()
    keys, values = engine.target_kv(request, 0, 60)
    with torch.no_grad():
        text = torch.tensor([[*request.prompt_ids, *request.output_ids][:60]])
        cached = latent_lab.model(text, use_cache=True).past_key_values
    assert tuple(keys.shape) == (4, 60, 1, 40)
    assert torch.equal(values, keys[..., :32])
    for layer, row in enumerate(keys[:, :, 0]):
        expected = torch.cat((cached.layers[layer].keys[0, 0], cached.layers[layer].values[0, 0]), 1)
        torch.testing.assert_close(row, expected, **NEAR)
    drafted, latents = engine.draft_kv(request, 0, 59)
    assert tuple(drafted.shape) == (1, 59, 1, 40)
    assert torch.equal(latents, drafted[..., :32])
    assert bool(drafted.isfinite().all())


@pytest.mark.gpu
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("topk", [1, 4])
def test_a_gpu_serves_the_same_text_from_its_graphs(wide_latent_lab: Lab, plan: str, topk: int) -> None:
    """Layers with experts, too; prefills of many tokens, decodes of few."""
    engine = build(options(wide_latent_lab, topk, attention_backend=plan, page_size=4, device="cuda"))
    asked = prompts(wide_latent_lab)
    for prompt, output in zip(asked, serve(engine, asked, NEW), strict=True):
        wide_latent_lab.oracle.check(prompt, output, NEW)
    assert async_probe.drain() == []
