"""Requests that are retracted and come back: what they hold of an earlier life is no fault, whoever drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.assets import checkpoint_path
from tests.run.oracles.watched import EAGLE, Watched, prompts

V1 = {**EAGLE, "worker": "v1"}
MTP = {"algorithm": "MTP", "num_steps": 3}
ASSISTANT = {"algorithm": "FROZEN_KV_MTP", "num_steps": 3}
WORKERS = {"v2": EAGLE, "v1": V1, "mtp": MTP, "frozen-kv": ASSISTANT}
LOOKS = {"lossless": True, "draft_kv": True}


@pytest.fixture
def chained(tmp_path: Path) -> str:
    """The shipped next-n layers, each to read the one before it."""
    shipped = checkpoint_path("tiny-mtp")
    config = json.loads((shipped / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"mtp_chain_hidden_states": True}))
    (tmp_path / "model.safetensors").symlink_to(shipped / "model.safetensors")
    return str(tmp_path)


def retractions(watched: Watched) -> int:
    return sum(request.retractions for request in watched.engine.requests.values())


@pytest.mark.parametrize("worker", WORKERS)
def test_a_request_that_is_prefilled_again_in_part_is_not_judged_by_what_it_stored_before(worker: str) -> None:
    watched = Watched(
        WORKERS[worker],
        spec={**LOOKS, "each_step": True},
        context_length=96,
        page_size=2,
        chunked_prefill_size=3,
        memory={"num_slots": 60},
    )
    assert watched.serve(prompts(12, 12, 12, 12), 30) == []
    assert retractions(watched) > 0


def zero_filled(worker: dict[str, Any], *, num_slots: int, **options: Any) -> Watched:
    """Serve a text without drafts, then texts that begin like it with drafts: their prefixes have draft KV of zeros."""
    watched = Watched(
        {**worker, "draft_kv_on_hit": "zero_fill"},
        spec=LOOKS,
        context_length=128,
        max_running_requests=4,
        memory={"num_slots": num_slots},
        **options,
    )
    (piece,) = prompts(24)
    watched.serve([piece], 8, speculative=False)
    watched.serve([piece, piece[:19], piece[:15]], 30)
    return watched


@pytest.mark.parametrize("worker", ["v2", "v1", "mtp"])
def test_output_that_comes_out_of_the_cache_again_may_have_draft_kv_of_zeros(worker: str) -> None:
    watched = zero_filled(WORKERS[worker], num_slots=86)
    assert watched.found == []
    assert retractions(watched) > 0
    assert any(request.hit_len > request.cached_tokens for request in watched.engine.requests.values())


def test_chained_layers_write_other_kv_behind_zeros(chained: str) -> None:
    watched = zero_filled({**MTP, "draft_model": chained}, num_slots=512)
    assert watched.found == []
    assert max(request.cached_tokens for request in watched.engine.requests.values()) > 0
