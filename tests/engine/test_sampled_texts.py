"""With drafts, sampled texts come out as often as the target alone says: every worker, chains and trees.

The vocabulary is so small that whole texts can be counted, and transformers says how likely each is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specdebug.engine import Engine, SamplingParams
from tests.engine import checkpoints, mla_checkpoints
from tests.engine.driving import build
from tests.engine.texts import p_values, text_probabilities, texts_of

if TYPE_CHECKING:
    from transformers import DeepseekV3ForCausalLM, LlamaForCausalLM

VOCAB = 8
PROMPT = [1, 6, 2, 2, 5, 0, 3]
TOKENS = 3
FALSE_ALARMS = 1e-3
"""Chance that any comparison of this file fails a sound engine, were its seeds drawn anew. They are fixed: a test that
passes keeps passing."""

CHAIN: dict[str, Any] = {"num_steps": 2, "eagle_topk": 1}
TREE: dict[str, Any] = {"num_steps": 2, "eagle_topk": 3, "num_draft_tokens": 8}
EVEN: dict[str, Any] = {"temperature": 1.0}
TOP_K: dict[str, Any] = {"temperature": 0.9, "top_k": 4}
TOP_P: dict[str, Any] = {"temperature": 1.3, "top_p": 0.8}
BOTH: dict[str, Any] = {"temperature": 1.1, "top_k": 5, "top_p": 0.9}


@dataclass(frozen=True)
class Case:
    """A worker's tree, and how its requests are sampled. ``draft``: a folder; None: nothing is drafted."""

    draft: str | None
    speculative: dict[str, Any]
    params: dict[str, Any]
    target: str = "target"


def latent(params: dict[str, Any], **speculative: Any) -> Case:
    return Case("nextn", {"algorithm": "EAGLE", **speculative}, params, "latent")


CASES = {
    "plain": Case(None, {}, EVEN),
    "v2-chain": Case("eagle", {"algorithm": "EAGLE", **CHAIN}, TOP_K),
    "v2-tree": Case("eagle", {"algorithm": "EAGLE", **TREE}, EVEN),
    "v2-tree-top-p": Case("eagle", {"algorithm": "EAGLE", **TREE}, TOP_P),
    "v2-eagle3-tree": Case("eagle3", {"algorithm": "EAGLE3", **TREE}, BOTH),
    "v1-chain": Case("eagle", {"algorithm": "EAGLE", "worker": "v1", **CHAIN}, TOP_K),
    "v1-tree": Case("eagle", {"algorithm": "EAGLE", "worker": "v1", **TREE}, EVEN),
    "v1-eagle3-tree": Case("eagle3", {"algorithm": "EAGLE3", "worker": "v1", **TREE}, BOTH),
    "mtp": Case("mtp", {"algorithm": "MTP", "num_steps": 2}, EVEN),
    "mtp-top-p": Case("mtp", {"algorithm": "MTP", "num_steps": 2}, TOP_P),
    "mtp-chained": Case("mtp-chained", {"algorithm": "MTP", "num_steps": 2}, BOTH),
    "frozen-kv-chain": Case("assistant", {"algorithm": "FROZEN_KV_MTP", **CHAIN}, TOP_K),
    "frozen-kv-tree": Case("assistant", {"algorithm": "FROZEN_KV_MTP", **TREE}, EVEN),
    "frozen-kv-tree-top-p": Case("assistant", {"algorithm": "FROZEN_KV_MTP", **TREE}, TOP_P),
    "mla-chain": latent(TOP_K, **CHAIN),
    "mla-tree": latent(EVEN, **TREE),
    "mla-tree-top-p": latent(TOP_P, **TREE),
    "mla-v1-tree": latent(BOTH, worker="v1", **TREE),
}
SOON = ("v1-tree", "mtp", "frozen-kv-tree", "mla-tree")
"""What is tested with fewer draws before every commit."""

COMPARISONS = (len(CASES) + len(SOON) + 1) * (TOKENS + 1)
CREDIBLE = FALSE_ALARMS / COMPARISONS
"""A p-value below this fails. However the comparisons depend on each other, they share what may fail (Bonferroni)."""


@dataclass(frozen=True)
class Small:
    """Checkpoints in one folder, and what transformers makes of the targets."""

    folder: Path
    models: dict[str, LlamaForCausalLM | DeepseekV3ForCausalLM]

    def engine(self, case: Case, **changed: Any) -> Engine:
        """64 requests at a time, in a graph."""
        speculative = None
        if case.draft is not None:
            speculative = {**case.speculative, "draft_model": str(self.folder / case.draft), **changed}
        return build(
            {
                "model": str(self.folder / case.target),
                "context_length": 16,
                "max_running_requests": 64,
                "cuda_graph": {"max_bs": 64, "capture_bs": [64]},
                "memory": {"num_slots": 4096, "fill": "nan"},
                "speculative": speculative,
            }
        )

    def p_values(self, engine: Engine, case: Case, count: int) -> list[float]:
        """Of ``count`` texts of the engine, by the target's own probabilities."""
        params = SamplingParams(max_new_tokens=TOKENS, **case.params)
        expected = text_probabilities(self.models[case.target], PROMPT, params)
        assert sum(expected.values()) == pytest.approx(1.0, abs=1e-4)
        return p_values(texts_of(engine, PROMPT, count, params), expected)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    folder = tmp_path_factory.mktemp("small")
    target, latent = folder / "target", folder / "latent"
    model = checkpoints.make_target(target, vocab=VOCAB, layers=4, seed=5)
    checkpoints.make_eagle(folder / "eagle", target, seed=2)
    checkpoints.make_eagle3(folder / "eagle3", target, seed=2)
    checkpoints.make_assistant(folder / "assistant", target, seed=2)
    for name, chained in (("mtp", False), ("mtp-chained", True)):
        checkpoints.make_mtp(folder / name, target, layers=2, chained=chained, seed=2)
    shape = {"vocab_size": VOCAB, "eos_token_id": VOCAB - 1, "first_k_dense_replace": 3}
    deepseek = mla_checkpoints.make_target(latent, seed=5, **shape)
    mla_checkpoints.make_nextn(folder / "nextn", latent, seed=2)
    return Small(folder, {"target": model, "latent": deepseek})


def accepted(engine: Engine) -> float:
    """Share of verifies that accept a draft."""
    lengths = [length for request in engine.requests.values() for length in request.accept_lengths]
    return sum(length > 1 for length in lengths) / len(lengths)


def hold(small: Small, name: str, count: int) -> None:
    case = CASES[name]
    engine = small.engine(case)
    found = small.p_values(engine, case, count)
    print(f"{name}: {count} texts, p {min(found):.2g} at least")
    assert min(found) > CREDIBLE, found
    if case.draft is not None:
        assert 0.2 < accepted(engine) < 0.98, "accepts and rejections both"


@pytest.mark.parametrize("name", SOON)
def test_some_texts_come_out_as_often_as_the_target_says(small: Small, name: str) -> None:
    hold(small, name, 600)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_texts_come_out_as_often_as_the_target_says(small: Small, name: str) -> None:
    hold(small, name, 2500)
