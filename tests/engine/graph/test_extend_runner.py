"""Draft extend as a graph, beside the forward itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.engine.attention.backend import TorchBackend
from specdebug.engine.attention.executor import TorchAttention
from specdebug.engine.graph.extend_runner import ExtendForward, ExtendGraphRunner, ExtendInputs, ExtendOutputs
from specdebug.engine.kernels.cache_locs import verify_cache_locs
from tests.engine.conftest import Lab
from tests.engine.graph.benches import (
    LENGTHS,
    MAX_BS,
    Bench,
    check_every_size_equals_eager,
    check_inputs_are_repainted_between_replays,
    check_outputs_are_views_until_the_next_replay,
    check_padding_cannot_influence_live_rows,
    cloned,
    outputs,
)

SHAPES = [
    {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6},
    {"num_steps": 4, "eagle_topk": 1, "num_draft_tokens": 5, "algorithm": "EAGLE3"},
]


class ExtendBench(Bench):
    inputs = (
        "draft_extend.input_ids",
        "draft_extend.positions",
        "draft_extend.out_cache_loc",
        "draft_extend.features",
        "draft_extend.accept_lengths",
        "draft_extend.req_pool_indices",
        "draft_extend.seq_lens",
    )

    def make(self) -> None:
        self.pool, self.nodes = self.draft_pool, self.spec.tree_size
        self.forward = ExtendForward(self.draft, self.pool, topk=self.spec.eagle_topk)
        self.runner: ExtendGraphRunner = ExtendGraphRunner(
            self.parts, self.forward, TorchBackend(), tree_size=self.nodes, target_vocab_size=self.vocab
        )
        self.tokens = self.ids(MAX_BS * self.nodes)
        self.features = self.draw(MAX_BS * self.nodes, self.draft.target_feature_size)
        self.accepted = torch.tensor([2, 1, self.nodes, 3, 1])

    def given(self, raw: int) -> ExtendInputs:
        lengths, tokens = torch.tensor(LENGTHS[:raw]), raw * self.nodes
        return ExtendInputs(
            input_ids=self.tokens[:tokens],
            positions=(lengths.unsqueeze(1) + torch.arange(self.nodes)).flatten(),
            out_cache_loc=self.written(raw),
            features=self.features[:tokens],
            accept_lengths=self.accepted[:raw],
            req_pool_indices=self.rows[:raw],
            seq_lens=lengths,
        )

    def eager(self, given: ExtendInputs) -> ExtendOutputs:
        metadata = self.planner.extend_uniform(self.layout(given), self.nodes, self.workspace)
        attention = TorchAttention(metadata, self.pool, given.out_cache_loc)
        return self.forward.run(given, self.nodes, attention)

    def replay(self, given: ExtendInputs) -> ExtendOutputs:
        return self.runner.replay(given, tuple(given.seq_lens.tolist()))

    def written(self, raw: int) -> Tensor:
        lengths = torch.tensor(LENGTHS[:raw])
        return verify_cache_locs(self.req_to_token.table, self.rows[:raw], lengths, self.nodes)


CONFIGS = [
    {"attention_backend": "flashinfer", "page_size": 1},
    {"attention_backend": "flashinfer", "page_size": 4},
    {"attention_backend": "fa3", "page_size": 1},
    {"attention_backend": "fa3", "page_size": 4},
    {"attention_backend": "triton", "page_size": 4},
]


@pytest.mark.parametrize("options", CONFIGS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fill", ["zeros", "garbage"])
def test_replay_at_every_size_equals_eager(lab: Lab, options: dict[str, Any], shape: dict[str, Any], fill: str) -> None:
    check_every_size_equals_eager(ExtendBench(lab, fill=fill, speculative=shape, **options))


@pytest.mark.parametrize("capture", [[5], [2, 4], [1, 3]])
def test_replay_pads_to_the_next_captured_size(lab: Lab, capture: list[int]) -> None:
    bench = ExtendBench(lab, capture=capture)
    assert [bench.runner.can_run(raw) for raw in range(1, 7)] == [raw <= max(capture) for raw in range(1, 7)]
    check_every_size_equals_eager(bench)


def test_outputs_are_views_until_the_next_replay(lab: Lab) -> None:
    check_outputs_are_views_until_the_next_replay(ExtendBench(lab, capture=[5]))


@pytest.mark.parametrize("options", CONFIGS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_padding_cannot_influence_live_rows(lab: Lab, options: dict[str, Any], shape: dict[str, Any]) -> None:
    check_padding_cannot_influence_live_rows(ExtendBench(lab, speculative=shape, **options))


@pytest.mark.parametrize("fill", ["zeros", "nan", "garbage"])
def test_inputs_are_repainted_between_replays(lab: Lab, fill: str) -> None:
    check_inputs_are_repainted_between_replays(ExtendBench(lab, fill=fill))


def test_what_was_not_accepted_does_not_reach_the_output(lab: Lab) -> None:
    """The result is read at the last accepted row, and attention is causal."""
    bench = ExtendBench(lab)
    before = cloned(bench.replay(bench.given(5)))
    for b, accepted in enumerate(bench.accepted.tolist()):
        rows = slice(b * bench.nodes + accepted, (b + 1) * bench.nodes)
        bench.tokens[rows] = (bench.tokens[rows] + 1) % bench.vocab
        bench.features[rows] *= -2
    after = outputs(bench.replay(bench.given(5)))
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    bench.accepted[0] += 1
    changed = (outputs(bench.replay(bench.given(5)))["hidden_states"] != before["hidden_states"]).any(dim=1)
    assert changed.tolist() == [True, False, False, False, False]


def test_padded_rows_accept_all_their_tokens_and_probes_find_nothing(lab: Lab) -> None:
    bench = ExtendBench(lab, fill="garbage")
    async_probe.configure("record")
    try:
        for raw in (5, 3, 1):
            bench.replay(bench.given(raw))
        assert async_probe.drain() == []
        assert async_probe.reached()["draft_extend_graph.replay.accept_lengths"] == 3
    finally:
        async_probe.configure("off")
