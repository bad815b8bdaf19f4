"""The passes of a frozen-KV draft as a graph, beside the passes themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.engine.attention.backend import TorchBackend
from specdebug.engine.attention.executor import TorchAttention
from specdebug.engine.graph.frozen_kv_runner import FrozenKVGraphRunner
from specdebug.engine.observer import Observers
from specdebug.engine.speculative.frozen_kv_loop import FrozenKVInputs, FrozenKVLoop, last_positions
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

FROZEN = {"algorithm": "FROZEN_KV_MTP"}
SHAPES = [
    {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6},
    {"num_steps": 4, "eagle_topk": 1, "num_draft_tokens": 5},
    {"num_steps": 1, "eagle_topk": 3, "num_draft_tokens": 4},
]
CONFIGS = [
    {"attention_backend": "flashinfer", "page_size": 4},
    {"attention_backend": "fa3", "page_size": 4},
    {"attention_backend": "triton", "page_size": 1},
]


class FrozenKVBench(Bench):
    inputs = ("draft.input_ids", "draft.hidden_states", "draft.req_pool_indices", "draft.seq_lens", "draft.positions")

    def __init__(self, lab: Lab, *, speculative: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(lab, speculative={**FROZEN, **(speculative or {})}, **options)

    def make(self) -> None:
        spec, model = self.spec, self.draft
        self.pool = self.target_pool
        self.loop = FrozenKVLoop(
            model,
            self.pool,
            topk=spec.eagle_topk,
            num_steps=spec.num_steps,
            tree_size=spec.tree_size,
            target_vocab_size=self.vocab,
            observers=Observers(),
        )
        self.runner: FrozenKVGraphRunner = FrozenKVGraphRunner(self.parts, self.loop, TorchBackend())
        self.bonus, self.hidden = self.ids(MAX_BS), self.draw(MAX_BS, model.hidden_size)

    def given(self, raw: int) -> FrozenKVInputs:
        lengths = torch.tensor(LENGTHS[:raw])
        return FrozenKVInputs(
            input_ids=self.bonus[:raw],
            hidden_states=self.hidden[:raw],
            req_pool_indices=self.rows[:raw],
            seq_lens=lengths,
            positions=last_positions(lengths, self.spec.eagle_topk),
        )

    def eager(self, given: FrozenKVInputs) -> DraftCandidates:
        plan = self.loop.plan(self.planner, given, tuple(given.seq_lens.tolist()), self.workspace)
        return self.loop.run(given, TorchAttention(plan, self.pool, None))

    def replay(self, given: FrozenKVInputs) -> DraftCandidates:
        return self.runner.replay(given, tuple(given.seq_lens.tolist()))

    def written(self, raw: int) -> Tensor:
        return torch.empty(0, dtype=torch.int64)


@pytest.fixture
def recorded() -> Iterator[None]:
    async_probe.configure("record")
    yield
    async_probe.configure("off")


@pytest.mark.parametrize("options", CONFIGS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fill", ["zeros", "garbage"])
def test_replay_at_every_size_equals_eager(lab: Lab, options: dict[str, Any], shape: dict[str, Any], fill: str) -> None:
    check_every_size_equals_eager(FrozenKVBench(lab, fill=fill, speculative=shape, **options))


@pytest.mark.parametrize("capture", [[5], [2, 4]])
def test_replay_pads_to_the_next_captured_size(lab: Lab, capture: list[int]) -> None:
    bench = FrozenKVBench(lab, capture=capture)
    assert [bench.runner.can_run(raw) for raw in range(1, 7)] == [raw <= max(capture) for raw in range(1, 7)]
    check_every_size_equals_eager(bench)


def test_outputs_are_views_until_the_next_replay(lab: Lab) -> None:
    check_outputs_are_views_until_the_next_replay(FrozenKVBench(lab, capture=[5]))


@pytest.mark.parametrize("options", CONFIGS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_padding_cannot_influence_live_rows(lab: Lab, options: dict[str, Any], shape: dict[str, Any]) -> None:
    check_padding_cannot_influence_live_rows(FrozenKVBench(lab, speculative=shape, **options))


@pytest.mark.parametrize("fill", ["zeros", "nan", "garbage"])
def test_inputs_are_repainted_between_replays(lab: Lab, fill: str) -> None:
    check_inputs_are_repainted_between_replays(FrozenKVBench(lab, fill=fill))


@pytest.mark.parametrize("fill", ["nan", "garbage"])
def test_probes_see_padded_rows_and_find_nothing(
    lab: Lab, fill: str, recorded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = FrozenKVBench(lab, fill=fill)
    for raw in (5, 3, 1, 3):
        bench.replay(bench.given(raw))
    assert async_probe.drain() == []
    assert async_probe.reached()["draft_graph.replay.positions"] == 4
    given, buffers = bench.given(3), bench.runner.buffers
    load = buffers.load

    def leave_padding_stale(inputs: object) -> None:
        buffers["draft.input_ids"].fill_(-1)
        bench.fill.paint(buffers["draft.positions"])
        load(inputs)

    monkeypatch.setattr(buffers, "load", leave_padding_stale)
    with pytest.raises(Exception, match="illegal address"):
        bench.replay(given)
    found = [violation.signature for violation in async_probe.drain()]
    assert {"oob@draft_graph.replay.input_ids", "oob@draft_graph.replay.positions"} <= set(found)


@pytest.mark.parametrize("options", CONFIGS, ids=str)
def test_what_is_planned_by_bounds_attends_the_same(lab: Lab, options: dict[str, Any], recorded: None) -> None:
    """A step that is begun early knows its lengths to a tree's size, of which at least one token was accepted."""
    bench = FrozenKVBench(lab, **options)
    for raw in (3, 5):
        given = bench.given(raw)
        known = {name: value.clone() for name, value in vars(bench.replay(given)).items()}
        bounds = tuple(length + bench.spec.tree_size - 1 for length in LENGTHS[:raw])
        early = bench.runner.replay(given, bounds)
        assert all(torch.equal(value, getattr(early, name)) for name, value in known.items())
    assert async_probe.drain() == []
