"""The draft loop as a graph, beside the loop itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.engine.attention.backend import TorchBackend
from specdebug.engine.attention.executor import TorchAttention
from specdebug.engine.attention.planner import DraftLayout
from specdebug.engine.graph.draft_runner import DraftGraphRunner
from specdebug.engine.kernels.cache_locs import assign_draft_cache_locs
from specdebug.engine.observer import Observers
from specdebug.engine.speculative.draft import DraftInputs, DraftLoop
from specdebug.engine.speculative.selection import DraftCandidates
from tests.engine.conftest import Lab
from tests.engine.graph.benches import (
    LENGTHS,
    MAX_BS,
    Bench,
    check_every_size_equals_eager,
    check_inputs_are_repainted_between_replays,
    check_outputs_are_views_until_the_next_replay,
    check_padding_cannot_influence_live_rows,
)

SHAPES = [
    {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6},
    {"num_steps": 4, "eagle_topk": 1, "num_draft_tokens": 5, "algorithm": "EAGLE3"},
    {"num_steps": 1, "eagle_topk": 3, "num_draft_tokens": 4},
]


class DraftBench(Bench):
    inputs = (
        "draft.topk_p",
        "draft.topk_index",
        "draft.hidden_states",
        "draft.req_pool_indices",
        "draft.seq_lens",
        "draft.positions",
        "draft.out_cache_loc",
    )

    def make(self) -> None:
        spec, model = self.spec, self.draft
        self.pool = self.draft_pool
        self.loop = DraftLoop(
            model,
            self.pool,
            topk=spec.eagle_topk,
            num_steps=spec.num_steps,
            tree_size=spec.tree_size,
            target_vocab_size=self.vocab,
            observers=Observers(),
        )
        self.runner: DraftGraphRunner = DraftGraphRunner(self.parts, self.loop, TorchBackend())
        topk = spec.eagle_topk
        logits = self.draw(MAX_BS, model.vocab_size)
        self.topk_p, self.topk_index = torch.softmax(logits, dim=-1).topk(topk, dim=-1)
        self.hidden = self.draw(MAX_BS, model.hidden_size)
        lengths = torch.tensor(LENGTHS)
        locs = assign_draft_cache_locs(
            self.req_to_token.table,
            self.rows,
            lengths,
            topk=topk,
            num_steps=spec.num_steps,
            page_size=self.config.page_size,
        )
        self.out_cache_loc = locs.out_cache_loc
        if locs.dup_src is not None and locs.dup_tgt is not None:
            self.pool.move_kv_cache(locs.dup_tgt, locs.dup_src)

    def given(self, raw: int) -> DraftInputs:
        lengths, topk = torch.tensor(LENGTHS[:raw]), self.spec.eagle_topk
        return DraftInputs(
            topk_p=self.topk_p[:raw],
            topk_index=self.topk_index[:raw],
            hidden_states=self.hidden[:raw],
            req_pool_indices=self.rows[:raw],
            seq_lens=lengths,
            positions=lengths.repeat_interleave(topk),
            out_cache_loc=self.out_cache_loc[: raw * topk],
        )

    def eager(self, given: DraftInputs) -> DraftCandidates:
        layout = DraftLayout(
            given.req_pool_indices,
            given.seq_lens,
            given.positions,
            given.out_cache_loc,
            tuple(given.seq_lens.tolist()),
        )
        plans = self.planner.draft_decode(layout, self.workspace)
        bound = [TorchAttention(plan, self.pool, loc) for plan, loc in zip(plans, self.loop.locs(given), strict=True)]
        return self.loop.run(given, bound)

    def replay(self, given: DraftInputs) -> DraftCandidates:
        return self.runner.replay(given, tuple(given.seq_lens.tolist()))

    def written(self, raw: int) -> Tensor:
        return self.out_cache_loc[: raw * self.spec.eagle_topk, : self.spec.num_steps - 1].flatten()


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
    check_every_size_equals_eager(DraftBench(lab, fill=fill, speculative=shape, **options))


@pytest.mark.parametrize("capture", [[5], [2, 4], [1, 3]])
def test_replay_pads_to_the_next_captured_size(lab: Lab, capture: list[int]) -> None:
    bench = DraftBench(lab, capture=capture)
    assert [bench.runner.can_run(raw) for raw in range(1, 7)] == [raw <= max(capture) for raw in range(1, 7)]
    check_every_size_equals_eager(bench)


def test_outputs_are_views_until_the_next_replay(lab: Lab) -> None:
    check_outputs_are_views_until_the_next_replay(DraftBench(lab, capture=[5]))


@pytest.mark.parametrize("options", CONFIGS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_padding_cannot_influence_live_rows(lab: Lab, options: dict[str, Any], shape: dict[str, Any]) -> None:
    check_padding_cannot_influence_live_rows(DraftBench(lab, speculative=shape, **options))


@pytest.mark.parametrize("fill", ["zeros", "nan", "garbage"])
def test_inputs_are_repainted_between_replays(lab: Lab, fill: str) -> None:
    check_inputs_are_repainted_between_replays(DraftBench(lab, fill=fill))


def test_one_step_has_no_parents(lab: Lab) -> None:
    bench = DraftBench(lab, speculative=SHAPES[2])
    result = bench.replay(bench.given(3))
    assert result.parent_list.shape == (3, 0)
    assert result.draft_tokens.shape == result.top_scores_index.shape == (3, 3)


@pytest.mark.parametrize("fill", ["nan", "garbage"])
def test_probes_see_padded_rows_and_find_nothing(lab: Lab, fill: str) -> None:
    bench = DraftBench(lab, fill=fill)
    async_probe.configure("record")
    try:
        for raw in (5, 3, 1, 3):
            bench.replay(bench.given(raw))
        assert async_probe.drain() == []
        reached = async_probe.reached()
        assert reached["draft_graph.replay.topk_index"] == 4
        bench.runner.buffers.rows("draft.topk_index", 4)[3] = -(2**60)
        bench.runner._probe(bench.runner._padded(4))
        assert [found.signature for found in async_probe.drain()][:1] == ["oob@draft_graph.replay.topk_index"]
    finally:
        async_probe.configure("off")
