"""The engine on a GPU: the same tokens as on a CPU, graphs or not, and one wait a step. Native only."""

from typing import Any

import pytest

from specdebug.base import corpus
from specdebug.base.assets import checkpoint_path
from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.engine.model.tokenizer import TargetTokenizer
from specdebug.targets.laws import broken_laws
from tests.engine.driving import waits_of_decode_steps

pytestmark = pytest.mark.gpu

SHAPES: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "chain": {"algorithm": "EAGLE", "num_steps": 3},
    "tree": {"algorithm": "EAGLE3", "num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 8},
    "v1": {"algorithm": "EAGLE", "worker": "v1", "num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6},
    "mtp": {"algorithm": "MTP", "num_steps": 3},
    "frozen-kv": {"algorithm": "FROZEN_KV_MTP", "num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 8},
}
"""Every worker and drafter but those of latent attention, which ``test_latent.py`` has."""
RUNS = {"eager, pages of 16": (False, 16), "graphs": (True, 1), "graphs, pages of 16": (True, 16)}
LENGTHS = (40, 150, 97, 300, 12)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    ids = TargetTokenizer(checkpoint_path("tiny") / "tokenizer.json").encode(corpus.heldout_text()[:60_000])
    return [ids[i * 700 : i * 700 + length] for i, length in enumerate(LENGTHS)]


def engine(shape: str, device: str = "cuda", **options: Any) -> Engine:
    return Engine(
        EngineConfig.from_dict(
            {
                "device": device,
                "context_length": 512,
                "speculative": SHAPES[shape],
                "memory": {"num_slots": 8192, "guards": True},
                **options,
            }
        )
    )


def add(served: Engine, prompts: list[list[int]], **sampling: Any) -> None:
    for index, prompt in enumerate(prompts):
        served.add_request(f"r{index}", prompt, SamplingParams(**{"max_new_tokens": 24, **sampling}))


def serve(served: Engine, prompts: list[list[int]], **sampling: Any) -> list[list[int]]:
    add(served, prompts, **sampling)
    while served.has_work:
        served.step()
        assert served.check_guards() == []
        assert broken_laws(served) == []
    return [request.output_ids for request in served.requests.values()]


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]]) -> list[list[int]]:
    return serve(engine("plain", device="cpu"), prompts)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("plan", ["flashinfer", "fa3", "triton"])
def test_fp32_gives_the_tokens_of_the_cpu(
    plan: str, shape: str, run: str, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Five requests in graphs of eight rows, and the last of them in graphs of four."""
    graphs, page_size = RUNS[run]
    sizes = {"enabled": graphs, "capture_bs": [4, 8]}
    options = {"attention_backend": plan, "page_size": page_size, "cuda_graph": sizes}
    assert serve(engine(shape, **options), prompts) == expected


def test_prefixes_chunks_and_batches_beyond_the_captured_sizes(
    prompts: list[list[int]], expected: list[list[int]]
) -> None:
    served = engine("tree", chunked_prefill_size=64, page_size=16, cuda_graph={"max_bs": 2, "capture_bs": [2]})
    assert serve(served, prompts) == expected
    for index, prompt in enumerate(prompts):  # again, now on cached prefixes
        served.add_request(f"again{index}", prompt, SamplingParams(max_new_tokens=24))
    while served.has_work:
        served.step()
    assert [served.requests[f"again{index}"].output_ids for index in range(len(prompts))] == expected
    assert served.requests["again3"].cached_tokens > 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("plan", ["flashinfer", "fa3", "triton"])
def test_a_steady_step_waits_once(plan: str, shape: str, prompts: list[list[int]]) -> None:
    graphs = {"capture_bs": [8]}
    served = engine(shape, attention_backend=plan, dtype="bfloat16", radix_cache=False, cuda_graph=graphs)
    add(served, prompts, max_new_tokens=150)
    for _ in range(6):
        served.step()
    steps = 6
    waits = waits_of_decode_steps(served, steps)
    assert waits == {"cudaEventSynchronize": steps}
