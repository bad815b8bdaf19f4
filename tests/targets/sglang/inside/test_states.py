"""Recurrent states: each slot has one owner, and a verify leaves behind it what it computed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug import async_probe
from specdebug.targets.sglang.inside.states import StateProbes, violated_states


@pytest.mark.parametrize(
    ("free", "cached", "expected"),
    [
        ([5, 6], [4], None),
        ([5, 6, 4], [4], "slot 4 of recurrent states is free and cached"),
        ([5, 6], [4, 1], "slot 1 of recurrent states is cached and a"),
        ([5], [4], "1 slots of recurrent states have no owner (first: 6)"),
    ],
)
def test_each_slot_of_recurrent_states_has_one_owner(free: list[int], cached: list[int], expected: str | None) -> None:
    pool = SimpleNamespace(mamba_allocator=SimpleNamespace(size=6, free_slots=torch.tensor(free)))
    tree = SimpleNamespace(all_mamba_values_flatten=lambda: torch.tensor(cached))
    buffer = {"mamba_ping_pong_track_buffer": torch.tensor([2, 3, -1]), "mamba_ping_pong_empty": [False, False, True]}
    one = SimpleNamespace(rid="a", kv=SimpleNamespace(mamba_pool_idx=torch.tensor(1), **buffer))
    waits = SimpleNamespace(rid="b", kv=None)
    assert list(violated_states(pool, [one, waits], tree)) == ([] if expected is None else [f"states: {expected}"])
    assert list(violated_states(SimpleNamespace(), [one], tree)) == []


@pytest.fixture(autouse=True)
def _recorded() -> Iterator[None]:
    async_probe.configure("record")
    yield
    async_probe.drain()
    async_probe.configure("off")


def mode(verifies: bool) -> Any:
    return SimpleNamespace(is_idle=lambda: False, is_target_verify=lambda: verifies)


class Engine:
    """Two requests, in rows 2 and 1 and slots 5 and 4, whose verify accepted node 2 of the first and its root of the
    second."""

    def __init__(self) -> None:
        kept = torch.arange(6.0).view(1, 2, 3, 1)  # layers, requests, nodes
        self.cache = SimpleNamespace(temporal=torch.zeros(1, 6, 1), intermediate_ssm=kept)
        slots = SimpleNamespace(
            mamba_pool=SimpleNamespace(mamba_cache=self.cache), get_mamba_indices=torch.tensor([0, 4, 5]).__getitem__
        )
        self.rows, self.slots = torch.tensor([2, 1]), slots
        answer = None, torch.tensor([2, 1]), torch.tensor([[0, 2], [3, -1]])
        batch = SimpleNamespace(req_to_token_pool=slots, req_pool_indices=self.rows, forward_mode=mode(True))
        self.probes = StateProbes()
        self.probes.accepted(lambda *_: answer, SimpleNamespace(draft_token_num=3), batch, None)

    def forward(self, *, verifies: bool = True) -> list[str]:
        runner = SimpleNamespace(req_to_token_pool=self.slots, is_draft_worker=False)
        batch = SimpleNamespace(req_pool_indices=self.rows, forward_mode=mode(verifies))
        assert self.probes.forward(lambda *_, **__: "answer", runner, batch) == "answer"
        return [each.site for each in async_probe.drain()]


def test_a_request_goes_on_from_the_state_behind_its_last_accepted_node() -> None:
    engine = Engine()
    engine.cache.temporal[0, 5], engine.cache.temporal[0, 4] = 2.0, 3.0
    assert engine.forward() == []


@pytest.mark.parametrize("states", [(0.0, 0.0), (2.0, 5.0), (1.0, 3.0)])
def test_a_state_that_is_not_moved_or_is_another_node_s_is_told(states: tuple[float, float]) -> None:
    engine = Engine()
    engine.cache.temporal[0, 5], engine.cache.temporal[0, 4] = states
    assert engine.forward() == ["commit.state"]
    assert engine.forward() == []  # once


def test_a_prompt_is_computed_from_no_verify() -> None:
    engine = Engine()
    assert engine.forward(verifies=False) == []
    assert engine.forward() == []
