"""Plain decode over static buffers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.engine.attention.backend import TorchBackend
from specdebug.engine.attention.executor import TorchAttention
from specdebug.engine.graph.decode_runner import DecodeForward, DecodeGraphRunner, DecodeInputs, DecodeOutputs
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
)


class DecodeBench(Bench):
    inputs = ("decode.input_ids", "decode.out_cache_loc", "decode.req_pool_indices", "decode.seq_lens")

    def make(self) -> None:
        self.pool = self.target_pool
        self.forward = DecodeForward(self.target, self.pool)
        self.runner: DecodeGraphRunner = DecodeGraphRunner(self.parts, self.forward, TorchBackend())
        self.tokens = self.ids(MAX_BS)

    def given(self, raw: int) -> DecodeInputs:
        return DecodeInputs(self.tokens[:raw], self.written(raw), self.rows[:raw], torch.tensor(LENGTHS[:raw]))

    def eager(self, given: DecodeInputs) -> DecodeOutputs:
        metadata = self.planner.extend_uniform(self.layout(given), 1, self.workspace)
        return self.forward.run(given, TorchAttention(metadata, self.pool, given.out_cache_loc))

    def replay(self, given: DecodeInputs) -> DecodeOutputs:
        return self.runner.replay(given, tuple(given.seq_lens.tolist()))

    def written(self, raw: int) -> Tensor:
        return verify_cache_locs(self.req_to_token.table, self.rows[:raw], torch.tensor(LENGTHS[:raw]), 1)


CONFIGS = [
    {"attention_backend": plan, "page_size": page, "speculative": {"eagle_topk": 1, "num_draft_tokens": 4}}
    for plan in ("flashinfer", "fa3", "triton")
    for page in (1, 4)
]


@pytest.mark.parametrize("options", CONFIGS, ids=str)
@pytest.mark.parametrize("fill", ["zeros", "garbage"])
def test_replay_at_every_size_equals_eager(lab: Lab, options: dict[str, Any], fill: str) -> None:
    check_every_size_equals_eager(DecodeBench(lab, fill=fill, **options))


@pytest.mark.parametrize("capture", [[5], [2, 4]])
def test_replay_pads_to_the_next_captured_size(lab: Lab, capture: list[int]) -> None:
    check_every_size_equals_eager(DecodeBench(lab, capture=capture))


def test_outputs_are_views_until_the_next_replay(lab: Lab) -> None:
    check_outputs_are_views_until_the_next_replay(DecodeBench(lab, capture=[5]))


@pytest.mark.parametrize("options", CONFIGS, ids=str)
def test_padding_cannot_influence_live_rows(lab: Lab, options: dict[str, Any]) -> None:
    check_padding_cannot_influence_live_rows(DecodeBench(lab, **options))


@pytest.mark.parametrize("fill", ["zeros", "nan", "garbage"])
def test_inputs_are_repainted_between_replays(lab: Lab, fill: str) -> None:
    check_inputs_are_repainted_between_replays(DecodeBench(lab, fill=fill))
