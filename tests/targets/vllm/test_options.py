"""A scenario's options as vLLM's arguments: what it has, what is otherwise there, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from specdebug.base.errors import InvalidOption
from specdebug.engine.config import EngineConfig
from specdebug.targets.vllm.options import mapped


def options(**more: Any) -> EngineConfig:
    return EngineConfig.from_dict(more)


def test_every_option_that_it_has() -> None:
    config = options(
        context_length=512,
        max_running_requests=3,
        page_size=64,
        memory={"num_slots": 1000, "fill": "zeros"},
        chunked_prefill_size=128,
        cuda_graph={"enabled": False},
        speculative={"num_steps": 4},
    )
    made = mapped(config, "/target", "/draft", cpu=True)
    assert made.arguments == {
        "model": "/target",
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": 3,
        "block_size": 64,
        "num_gpu_blocks_override": 17,
        "enable_prefix_caching": True,
        "enforce_eager": True,
        "max_num_batched_tokens": 128 + 3 * 5,
        "enable_chunked_prefill": True,
        "speculative_config": {"method": "eagle", "model": "/draft", "num_speculative_tokens": 4},
    }
    assert made.notes == ("attention_backend: its own for CPUs",)


def test_what_is_otherwise_there_is_a_note() -> None:
    made = mapped(options(speculative={"worker": "v1"}), "/target", "/draft", cpu=True)
    assert made.notes[-1] == "speculative.worker: it has its own"
    made = mapped(options(page_size=16, radix_cache=False), "/target", None, cpu=True)
    assert (made.arguments["block_size"], made.arguments["enable_prefix_caching"]) == (32, False)
    assert "speculative_config" not in made.arguments
    assert [note.partition(":")[0] for note in made.notes] == ["page_size", "attention_backend", "cuda_graph", "memory"]
    assert mapped(options(page_size=16), "/target", None, cpu=False).arguments["block_size"] == 16


@pytest.mark.parametrize(
    ("speculative", "said"),
    [
        ({"eagle_topk": 2, "num_draft_tokens": 4}, r"engine\.speculative\.eagle_topk: vLLM drafts chains"),
        ({"threshold_acc": 0.5}, r"engine\.speculative\.threshold_acc: vLLM has no such threshold"),
        ({"algorithm": "FROZEN_KV_MTP"}, r"engine\.speculative\.algorithm: .* EAGLE, EAGLE3; not FROZEN_KV_MTP"),
        ({"draft_kv_on_hit": "zero_fill"}, r"engine\.speculative\.draft_kv_on_hit: vLLM keeps the draft's KV"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(speculative: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        mapped(options(speculative=speculative), "/target", "/draft", cpu=True)
