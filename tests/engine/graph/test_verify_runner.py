"""Target verify as a graph, beside the forward itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.engine.attention.backend import TorchBackend
from specdebug.engine.attention.executor import TorchAttention
from specdebug.engine.graph.verify_runner import VerifyForward, VerifyGraphRunner, VerifyInputs, VerifyOutputs
from specdebug.engine.kernels.cache_locs import verify_cache_locs
from tests.engine.attention.cases import random_tree
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


class VerifyBench(Bench):
    inputs = (
        "verify.input_ids",
        "verify.positions",
        "verify.out_cache_loc",
        "verify.tree_mask",
        "verify.req_pool_indices",
        "verify.seq_lens",
    )

    def make(self) -> None:
        self.pool, self.nodes = self.target_pool, self.spec.tree_size
        self.forward = VerifyForward(self.target, self.pool, self.draft.aux_layers, self.draft.target_feature_size)
        self.runner: VerifyGraphRunner = VerifyGraphRunner(
            self.parts, self.forward, TorchBackend(), tree_size=self.nodes
        )
        self.masks = torch.stack([random_tree(self.nodes, self.spec.eagle_topk, self.generator) for _ in LENGTHS])
        self.tokens = self.ids(MAX_BS * self.nodes)

    def given(self, raw: int) -> VerifyInputs:
        lengths, mask = torch.tensor(LENGTHS[:raw]), self.masks[:raw]
        return VerifyInputs(
            input_ids=self.tokens[: raw * self.nodes],
            positions=(lengths.unsqueeze(1) + mask.sum(dim=-1) - 1).flatten(),
            out_cache_loc=self.written(raw),
            tree_mask=mask,
            req_pool_indices=self.rows[:raw],
            seq_lens=lengths,
        )

    def eager(self, given: VerifyInputs) -> VerifyOutputs:
        metadata = self.planner.verify(self.layout(given), given.tree_mask, self.workspace)
        return self.forward.run(given, TorchAttention(metadata, self.pool, given.out_cache_loc))

    def replay(self, given: VerifyInputs) -> VerifyOutputs:
        lens = tuple(given.seq_lens.tolist())
        return self.runner.launch(self.runner.prepare(given, lens), lens)

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
    check_every_size_equals_eager(VerifyBench(lab, fill=fill, speculative=shape, **options))


@pytest.mark.parametrize("capture", [[5], [2, 4], [1, 3]])
def test_replay_pads_to_the_next_captured_size(lab: Lab, capture: list[int]) -> None:
    bench = VerifyBench(lab, capture=capture)
    assert [bench.runner.can_run(raw) for raw in range(1, 7)] == [raw <= max(capture) for raw in range(1, 7)]
    check_every_size_equals_eager(bench)


def test_outputs_are_views_until_the_next_replay(lab: Lab) -> None:
    check_outputs_are_views_until_the_next_replay(VerifyBench(lab, capture=[5]))


@pytest.mark.parametrize("options", CONFIGS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_padding_cannot_influence_live_rows(lab: Lab, options: dict[str, Any], shape: dict[str, Any]) -> None:
    check_padding_cannot_influence_live_rows(VerifyBench(lab, speculative=shape, **options))


@pytest.mark.parametrize("fill", ["zeros", "nan", "garbage"])
def test_inputs_are_repainted_between_replays(lab: Lab, fill: str) -> None:
    check_inputs_are_repainted_between_replays(VerifyBench(lab, fill=fill))


@pytest.mark.parametrize(("algorithm", "layers"), [("EAGLE", 1), ("EAGLE3", 3)])
def test_features_are_what_the_draft_reads(lab: Lab, algorithm: str, layers: int) -> None:
    bench = VerifyBench(lab, speculative={"algorithm": algorithm})
    result = bench.replay(bench.given(2))
    assert result.logits.shape == (2 * bench.nodes, lab.vocab)
    assert result.features.shape == (2 * bench.nodes, layers * bench.target.config.hidden_size)


@pytest.mark.parametrize("options", CONFIGS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("raw", [1, 3, 5])
def test_lengths_may_be_known_only_at_launch(
    lab: Lab, options: dict[str, Any], shape: dict[str, Any], raw: int, recording: None
) -> None:
    """Planned for what they can be at most, in buffers of garbage: the same outputs, no probe finds anything, and
    a library that schedules on the host is told what is."""
    bench = VerifyBench(lab, speculative=shape, **options)
    given, start = bench.given(raw), bench.contents()
    expected = cloned(bench.replay(given))
    bench.restore(start)
    again = VerifyBench(lab, speculative=shape, **options)
    lens = tuple(given.seq_lens.tolist())
    longest = tuple(length + again.nodes - 1 for length in lens)
    told: list[Any] = []
    bind = again.runner._attention.bind
    again.runner._attention.bind = lambda plan, *rest, **flags: told.append(plan) or bind(plan, *rest, **flags)
    planned = again.runner.prepare(again.given(raw), longest, slack=raw * (again.nodes - 1))
    found = outputs(again.runner.launch(planned, lens))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert async_probe.drain() == []
    assert again.runner.check_guards() == []
    if options["attention_backend"] != "fa3":
        padding = planned.bs - raw
        (plan,) = told
        assert plan.kv_lens_host == tuple(length + again.nodes for length in lens) + (again.nodes,) * padding


def test_what_is_abandoned_leaves_nothing_behind(lab: Lab) -> None:
    bench = VerifyBench(lab, fill="nan")
    buffers, expected = bench.runner.buffers, cloned(bench.replay(bench.given(2)))
    bench.runner.prepare(bench.given(MAX_BS), LENGTHS)
    loaded = {name: buffers[name].clone() for name in bench.inputs}
    bench.runner.abandon()
    assert not any(torch.equal(buffers[name], value) for name, value in loaded.items())
    found = outputs(bench.replay(bench.given(2)))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_node_that_is_no_ancestor_is_not_seen(lab: Lab) -> None:
    """Swap the token of a leaf: only its own row changes."""
    bench = VerifyBench(lab)
    leaf = bench.nodes - 1
    before = cloned(bench.replay(bench.given(2)))
    bench.tokens[leaf] = (bench.tokens[leaf] + 1) % bench.vocab
    changed = (outputs(bench.replay(bench.given(2)))["logits"] != before["logits"]).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [leaf]


def test_padded_rows_see_everything(lab: Lab) -> None:
    """A row that may see nothing has no softmax."""
    bench = VerifyBench(lab, fill="zeros", capture=[5])
    bench.replay(bench.given(3))
    assert torch.equal(bench.runner.buffers["verify.tree_mask"][:3], bench.masks[:3])
    assert bool(bench.runner.buffers["verify.tree_mask"][3:].all())
    assert not bool(bench.runner.buffers["verify.logits"].isnan().any())
