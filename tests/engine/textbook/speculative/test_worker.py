"""An EAGLE iteration from outside: whose KV lies where, what is drafted, and what must not change it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.base.attention_plans import SHIPPED
from specdebug.engine import Engine, Request, SamplingParams
from specdebug.reference.draft import draft_kv
from specdebug.reference.target import DenseCache, target_forward
from specdebug.reference.weights import load_draft, load_weights
from tests.engine.conftest import Lab
from tests.engine.driving import build, run

BACKENDS = tuple(plan.name for plan in SHIPPED)
ALGORITHMS = ("EAGLE", "EAGLE3")


def base(lab: Lab, algorithm: str = "EAGLE", **speculative: Any) -> dict[str, Any]:
    return {
        "model": str(lab.target),
        "context_length": 256,
        "memory": {"num_slots": 8192, "fill": "nan", "guards": True},
        "speculative": {"algorithm": algorithm, "draft_model": str(lab.draft(algorithm)), **speculative},
    }


TREE = {"num_steps": 4, "eagle_topk": 3, "num_draft_tokens": 12}
CHAIN = {"num_steps": 4, "eagle_topk": 1}


def prompts(lab: Lab, lengths: tuple[int, ...] = (30, 7, 51)) -> list[list[int]]:
    return [[(13 * n * n + 7 * n + 11 * i) % lab.vocab for n in range(length)] for i, length in enumerate(lengths)]


class Dense:
    """KV of the whole text by the dense reference: keys and values [layers, n, Hkv, D]."""

    def __init__(self, lab: Lab, algorithm: str) -> None:
        self.weights, self.config = load_weights(lab.target)
        self.head = load_draft(lab.draft(algorithm), self.weights, self.config)

    @torch.no_grad()
    def kv(self, ids: list[int]) -> dict[str, tuple[Tensor, Tensor]]:
        """target: positions 0..n-1. draft: positions 0..n-2, as the last has no next token."""
        cache = DenseCache(self.config, len(ids))
        _, hidden, aux = target_forward(
            self.weights, self.config, torch.tensor(ids), cache=cache, aux_layers=self.head.config.aux_layers
        )
        features = (aux if self.head.is_eagle3 else hidden)[:-1]
        k, v = draft_kv(self.head, torch.tensor(ids[1:]), features, torch.arange(len(ids) - 1))
        return {
            "target": (cache.keys.transpose(1, 2), cache.values.transpose(1, 2)),
            "draft": (k.transpose(0, 1)[None], v.transpose(0, 1)[None]),
        }


class Snapshots:
    """Both pools' KV of every running request after each step, compared when the whole text is known."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.taken: list[tuple[Request, int, dict[str, tuple[Tensor, Tensor]]]] = []

    def __call__(self, _: object) -> None:
        for request in self.engine.requests.values():
            if request.row and request.kv_len:
                kv = {"target": self.engine.target_kv(request, 0, request.kv_len)}
                if request.speculative:
                    kv["draft"] = self.engine.draft_kv(request, 0, request.kv_len)
                self.taken.append((request, request.kv_len, kv))

    def check(self, dense: Dense) -> None:
        texts: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
        for request, length, kv in self.taken:
            expected = texts.setdefault(request.rid, dense.kv(request.all_ids))
            for pool, parts in kv.items():
                for got, want in zip(parts, expected[pool], strict=True):
                    torch.testing.assert_close(
                        got,
                        want[:, :length],
                        rtol=1e-3,
                        atol=1e-3,
                        msg=lambda text, pool=pool, rid=request.rid, n=length: f"{pool} KV of {rid} at {n}: {text}",
                    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("page_size", "speculative", "chunk", "graph"),
    [(1, CHAIN, None, True), (1, TREE, 9, False), (4, CHAIN, 16, False), (4, TREE, None, True), (16, TREE, 5, True)],
)
def test_kv_of_both_pools_is_the_dense_references_after_every_step(
    lab: Lab, algorithm: str, backend: str, page_size: int, speculative: dict, chunk: int | None, graph: bool
) -> None:
    """Accepted branches moved to the front, chunk tails, rewritten draft slots: everything shows here."""
    engine = build(
        base(lab, algorithm, **speculative),
        attention_backend=backend,
        page_size=page_size,
        chunked_prefill_size=chunk,
        cuda_graph={"enabled": graph},
    )
    for n, prompt in enumerate(prompts(lab)):
        engine.add_request(f"r{n}", prompt, SamplingParams(max_new_tokens=16))
    snapshots = Snapshots(engine)
    run(engine, snapshots)
    assert len(snapshots.taken) > 10
    assert max(max(request.accept_lengths) for request in engine.requests.values()) > 1
    snapshots.check(Dense(lab, algorithm))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kv_after_hits_and_retractions_is_the_dense_references(lab: Lab, algorithm: str) -> None:
    engine = build(base(lab, algorithm, **TREE), page_size=4, chunked_prefill_size=40, memory={"num_slots": 216})
    shared = prompts(lab, (64,))[0]
    for n in range(4):
        leaves = 60 - 4 * n  # on a page's end: the last slot before it depends on the token after it (PR 10846)
        prompt = [*shared[:leaves], (shared[leaves] + 1) % lab.vocab, n]
        engine.add_request(f"r{n}", prompt, SamplingParams(max_new_tokens=24))
    snapshots = Snapshots(engine)
    run(engine, snapshots)
    requests = engine.requests.values()
    assert sum(request.retractions for request in requests) > 0
    assert sum(request.cached_tokens > 0 for request in requests) > 0
    snapshots.check(Dense(lab, algorithm))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("speculative", [CHAIN, TREE], ids=["chain", "tree"])
def test_accept_lengths_depend_on_tokens_alone(lab: Lab, algorithm: str, speculative: dict) -> None:
    """A fault in drafting never shows in the output, but in what is accepted: neither backend nor pages, graphs,
    padding, chunks or companions may change that.
    """
    asked = prompts(lab)

    def accepted(indices: list[int], **changes: Any) -> list[list[int]]:
        engine = build(base(lab, algorithm, **speculative), **changes)
        for n in indices:
            engine.add_request(f"r{n}", asked[n], SamplingParams(max_new_tokens=20))
        run(engine)
        return [engine.requests[f"r{n}"].accept_lengths for n in indices]

    expected = accepted([0, 1, 2], cuda_graph={"enabled": False}, memory={"fill": "zeros"})
    assert max(max(lengths) for lengths in expected) > 2
    assert [accepted([n])[0] for n in (0, 1, 2)] == expected, "alone"
    for backend in BACKENDS:
        for page_size in (1, 4, 64):
            changes = {"attention_backend": backend, "page_size": page_size}
            assert accepted([0, 1, 2], **changes) == expected, changes
    assert accepted([0, 1, 2], cuda_graph={"max_bs": 8, "capture_bs": [8]}, memory={"fill": "garbage"}) == expected
    assert accepted([0, 1, 2], cuda_graph={"max_bs": 2}) == expected, "too large for a graph"
    assert accepted([0, 1, 2], chunked_prefill_size=4) == expected
    assert accepted([2, 0, 1]) == [expected[n] for n in (2, 0, 1)]


def warm_without_drafting(lab: Lab, draft_kv_on_hit: str) -> tuple[Engine, list[int]]:
    """An engine whose cache holds a prefix that only a request without speculation has computed."""
    engine = build(base(lab, draft_kv_on_hit=draft_kv_on_hit, **TREE), page_size=4)
    prompt = prompts(lab)[2]
    engine.add_request("warm", prompt, SamplingParams(max_new_tokens=4), speculative=False)
    run(engine)
    return engine, prompt


def test_zero_fill_takes_the_hit_and_zeros_what_is_missing(lab: Lab) -> None:
    engine, prompt = warm_without_drafting(lab, "zero_fill")
    engine.add_request("hit", prompt, SamplingParams(max_new_tokens=8))
    request = engine.requests["hit"]
    engine.step()
    assert request.cached_tokens == 48
    keys, values = engine.draft_kv(request, 0, 48)
    assert not bool(keys.any())
    assert not bool(values.any())
    keys, _ = engine.draft_kv(request, 48, request.kv_len)
    assert bool(keys.abs().sum(dim=(0, 2, 3)).gt(0).all())
    run(engine)
    lab.oracle.check(prompt, request.output_ids, 8)
