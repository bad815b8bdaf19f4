"""The extend of next-n layers as a graph, beside the forward itself."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.engine.attention.backend import TorchBackend
from specdebug.engine.attention.executor import TorchAttention
from specdebug.engine.errors import IllegalAddress
from specdebug.engine.graph.mtp_runner import MTPExtendGraphRunner
from specdebug.engine.kernels.cache_locs import verify_cache_locs
from specdebug.engine.speculative.mtp_extend import LayerChain, MTPExtendForward, MTPExtendInputs, MTPExtendOutputs
from specdebug.engine.speculative.mtp_state import MTPStateTable, RecentPositions
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


class MTPBench(Bench):
    inputs = (
        "draft_extend.input_ids",
        "draft_extend.features",
        "draft_extend.out_cache_loc",
        "draft_extend.accept_lengths",
        "draft_extend.req_pool_indices",
        "draft_extend.seq_lens",
    )

    def __init__(self, lab: Lab, layers: int = 3, *, chained: bool = False, **options: Any) -> None:
        spec = {"algorithm": "MTP", "num_steps": layers, "eagle_topk": 1, "num_draft_tokens": None}
        super().__init__(lab, speculative=spec | {"draft_model": str(lab.next_n(layers, chained=chained))}, **options)

    def make(self) -> None:
        self.pool, nodes, size = self.draft_pool, self.spec.tree_size, self.draft.hidden_size
        earlier = self.draft.num_layers - 1
        state = MTPStateTable(
            MAX_BS, num_layers=self.draft.num_layers, hidden_size=size, dtype=torch.float32, device=torch.device("cpu")
        )
        self.recent = RecentPositions(self.ids(MAX_BS * earlier).view(MAX_BS, -1), self.draw(MAX_BS, earlier, size))
        drafts = torch.zeros(MAX_BS, self.draft.num_layers, dtype=torch.int64)
        state.store_drafts(self.rows, drafts, self.recent)
        self.forward = MTPExtendForward(LayerChain(self.draft, self.pool), state, tree_size=nodes)
        self.runner: MTPExtendGraphRunner = MTPExtendGraphRunner(self.parts, self.forward, TorchBackend())
        self.tokens = self.ids(MAX_BS * nodes)
        self.features = self.draw(MAX_BS * nodes, size)
        self.accepted = torch.tensor([2, 1, nodes, 3, 1])

    def given(self, raw: int) -> MTPExtendInputs:
        lengths, tokens = torch.tensor(LENGTHS[:raw]), raw * self.spec.tree_size
        return MTPExtendInputs(
            input_ids=self.tokens[:tokens],
            features=self.features[:tokens],
            out_cache_loc=self.written(raw),
            accept_lengths=self.accepted[:raw],
            req_pool_indices=self.rows[:raw],
            seq_lens=lengths,
        )

    def eager(self, given: MTPExtendInputs) -> MTPExtendOutputs:
        layout = self.forward.layout(self.layout(given))
        metadata = self.planner.extend_uniform(layout, self.forward.width, self.workspace)
        return self.forward.run(given, TorchAttention(metadata, self.pool, given.out_cache_loc))

    def replay(self, given: MTPExtendInputs) -> MTPExtendOutputs:
        return self.runner.replay(given, tuple(given.seq_lens.tolist()))

    def written(self, raw: int) -> Tensor:
        first = (torch.tensor(LENGTHS[:raw]) - self.forward.earlier).clamp(min=0)
        return verify_cache_locs(self.req_to_token.table, self.rows[:raw], first, self.forward.width)


CONFIGS = [
    {"attention_backend": "flashinfer", "page_size": 1},
    {"attention_backend": "fa3", "page_size": 4},
    {"attention_backend": "triton", "page_size": 4},
]


@pytest.mark.parametrize("options", CONFIGS, ids=str)
@pytest.mark.parametrize(("layers", "chained"), [(2, False), (3, True), (4, False)])
@pytest.mark.parametrize("fill", ["zeros", "garbage"])
def test_replay_at_every_size_equals_eager(
    lab: Lab, options: dict[str, Any], layers: int, chained: bool, fill: str
) -> None:
    check_every_size_equals_eager(MTPBench(lab, layers, chained=chained, fill=fill, **options))


@pytest.mark.parametrize("capture", [[5], [2, 4], [1, 3]])
def test_replay_pads_to_the_next_captured_size(lab: Lab, capture: list[int]) -> None:
    bench = MTPBench(lab, capture=capture)
    assert [bench.runner.can_run(raw) for raw in range(1, 7)] == [raw <= max(capture) for raw in range(1, 7)]
    check_every_size_equals_eager(bench)


def test_outputs_are_views_until_the_next_replay(lab: Lab) -> None:
    check_outputs_are_views_until_the_next_replay(MTPBench(lab, capture=[5]))


@pytest.mark.parametrize("options", CONFIGS, ids=str)
def test_padding_cannot_influence_live_rows(lab: Lab, options: dict[str, Any]) -> None:
    check_padding_cannot_influence_live_rows(MTPBench(lab, **options))


@pytest.mark.parametrize("fill", ["zeros", "nan", "garbage"])
def test_inputs_are_repainted_between_replays(lab: Lab, fill: str) -> None:
    check_inputs_are_repainted_between_replays(MTPBench(lab, fill=fill))


def test_what_was_not_accepted_does_not_reach_the_output(lab: Lab) -> None:
    """All is read at the last accepted rows or before, and attention is causal."""
    bench = MTPBench(lab)
    before, nodes = cloned(bench.replay(bench.given(5))), bench.spec.tree_size
    for b, accepted in enumerate(bench.accepted.tolist()):
        rows = slice(b * nodes + accepted, (b + 1) * nodes)
        bench.tokens[rows] = (bench.tokens[rows] + 1) % bench.vocab
        bench.features[rows] *= -2
    after = outputs(bench.replay(bench.given(5)))
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_the_last_positions_are_kept_for_the_next_extend(lab: Lab) -> None:
    """Those before the step move on as far as tokens were accepted; of four accepted ones the last two are kept."""
    bench = MTPBench(lab)
    found, nodes = bench.replay(bench.given(5)), bench.spec.tree_size
    tokens, features = bench.tokens.view(5, nodes), bench.features.view(5, nodes, -1)
    for b, accepted in enumerate(bench.accepted.tolist()):
        ids = torch.cat([bench.recent.next_ids[b], tokens[b, :accepted]])
        hidden = torch.cat([bench.recent.hidden_states[b], features[b, :accepted]])
        assert torch.equal(found.next_ids[b], ids[-2:])
        assert torch.equal(found.hidden_states[b], hidden[-2:])


def test_probes_look_at_padded_rows_and_find_nothing(lab: Lab, recording: None) -> None:
    bench = MTPBench(lab, fill="garbage")
    for raw in (5, 3, 1):
        bench.replay(bench.given(raw))
    assert async_probe.drain() == []
    assert async_probe.reached()["mtp_graph.replay.req_pool_indices"] == 3


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("input_ids", "oob@mtp_graph.replay.input_ids"),
        ("accept_lengths", "oob@mtp_graph.replay.accept_lengths"),
        ("req_pool_indices", "oob@mtp_graph.replay.req_pool_indices"),
        ("features", "nan@mtp_graph.replay.hidden_states"),
    ],
)
def test_a_padded_row_that_is_not_cleared_is_seen(
    lab: Lab, recording: None, monkeypatch: pytest.MonkeyPatch, name: str, site: str
) -> None:
    bench = MTPBench(lab, capture=[4])
    load = bench.runner.buffers.load

    def spoilt(inputs: Any) -> None:
        load(inputs)
        bench.runner.buffers[f"draft_extend.{name}"][-1] = float("nan") if name == "features" else 10**6

    monkeypatch.setattr(bench.runner.buffers, "load", spoilt)
    with contextlib.suppress(IndexError, IllegalAddress):  # what follows from it
        bench.replay(bench.given(3))
    found = async_probe.drain()[0]
    assert f"{found.kind}@{found.site}" == site
