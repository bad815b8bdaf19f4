"""What pools hold as a forward finds it: the rows of prefixes, of what a verify committed, and of recurrent state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.targets.sglang.inside import stored
from specdebug.targets.sglang.inside.seats import Seat
from specdebug.targets.sglang.inside.stored import StoredSites
from tests.targets.sglang.inside.engine import imported

SLOTS = 10


def pool(first: float) -> Any:
    """One layer, whose keys are the slots' numbers and a little, its values their opposites."""
    keys = torch.arange(SLOTS, dtype=torch.float32).view(-1, 1, 1) + first
    return SimpleNamespace(k_buffer=[keys], v_buffer=[-keys])


def runner(kv: Any, *, drafts: bool = False, **more: Any) -> Any:
    cells = torch.tensor([[0] * 4, [5, 6, 7, 8], [9, 3, 2, 1]])
    slots = SimpleNamespace(req_to_token=cells, **more)
    return SimpleNamespace(token_to_kv_pool=kv, req_to_token_pool=slots, is_draft_worker=drafts)


def batch(lengths: list[int], prefixes: list[int], tokens: int) -> Any:
    rows, mode = (
        torch.arange(1, len(lengths) + 1),
        SimpleNamespace(is_extend=lambda: True, is_target_verify=lambda: False),
    )
    more = {"extend_prefix_lens": torch.tensor(prefixes), "input_ids": torch.zeros(tokens), "forward_mode": mode}
    return SimpleNamespace(req_pool_indices=rows, seq_lens=torch.tensor(lengths), **more)


class Sites(StoredSites):
    def __init__(self) -> None:
        self.told: dict[str, Tensor] = {}
        super().__init__(self.told.__setitem__, lambda: True)


def test_a_prefill_goes_on_from_prefixes_of_target_and_draft() -> None:
    sites = Sites()
    sites.before("draft_prefill", runner(pool(100.0), drafts=True), batch([2, 2], [0, 0], 4))
    sites.before("target_prefill", runner(pool(0.0)), batch([4, 4], [2, 0], 6))
    assert {name: each.tolist() for name, each in sites.told.items()} == {
        "prefix.lens": [2, 0],
        "prefix.target_kv": [[5 + 2 * 6, -5 - 2 * 6], [0, 0]],
        "prefix.draft_kv": [[105 + 2 * 106, -105 - 2 * 106], [0, 0]],
    }
    cold = Sites()
    cold.before("target_prefill", runner(pool(0.0)), batch([4], [0], 4))
    assert list(cold.told) == ["prefix.lens"]


def test_a_verify_finds_as_many_certain_positions_as_it_has_nodes() -> None:
    sites = Sites()
    sites.before("verify", runner(pool(0.0)), batch([3, 1], [0, 0], 4))
    assert sites.told["commit.target_kv"].tolist() == [[6, -6, 7, -7], [0, 0, 9, -9]]
    sites.before("block", runner(pool(0.0), drafts=True), batch([3, 1], [0, 0], 4))
    sites.drafts(runner(pool(1.0)), batch([2], [0], 1), 2)
    assert sites.told["commit.draft_kv"].tolist() == [[6, -6, 7, -7]]


def test_where_a_window_has_no_slot_there_are_zeros() -> None:
    leads = torch.tensor([0, 0, 0, 0, 0, 0, 4, 0, 0, 0])
    both = SimpleNamespace(
        full_kv_pool=pool(0.0), swa_kv_pool=pool(50.0), translate_loc_from_full_to_swa=leads.__getitem__
    )
    sites = Sites()
    sites.before("verify", runner(both), batch([3], [0], 2))
    assert sites.told["commit.target_kv"].tolist() == [[54, -54, 6, -6, 0, 0, 7, -7]]


def test_states_are_those_of_a_request_s_slot_and_of_the_buffers_that_it_keeps_them_in() -> None:
    cache = SimpleNamespace(
        conv=[torch.arange(4.0).view(1, 4, 1, 1)], temporal=10 * torch.arange(4.0).view(1, 4, 1, 1, 1)
    )
    more = {
        "mamba_pool": SimpleNamespace(mamba_cache=cache),
        "get_mamba_indices": lambda rows: torch.tensor([0, 3, 1])[rows],
        "req_index_to_mamba_ping_pong_track_buffer_mapping": torch.tensor([[0, 0], [2, 0], [1, 1]]),
    }
    sites = Sites()
    sites.before("verify", runner(pool(0.0), **more), batch([3, 1], [0, 0], 4))
    assert sites.told["commit.state"].tolist() == [[3, 30], [1, 10]]
    assert sites.told["snapshot.state"].tolist() == [[2, 20, 0, 0], [1, 10, 1, 10]]
    sites.copied(lambda *_: None, runner(pool(0.0), **more), batch([3, 1], [0, 0], 4))
    assert torch.equal(sites.told["prefix.state"], sites.told["commit.state"])


def test_copies_of_states_are_tapped_where_a_release_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    imported(monkeypatch, {"own": {"copy": 1}})
    monkeypatch.setattr(stored, "installed", lambda: SimpleNamespace(has="srt.own:copy".__eq__))
    assert list(Sites().taps()) == []
    monkeypatch.setattr(stored, "COPIED", Seat("states", ("srt.own:copy",)))
    ((_, name, _),) = Sites().taps()
    assert name == "copy"
