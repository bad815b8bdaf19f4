"""Pool rows one at a time; device twins are held to the same functions."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.kernels.kv_cache import move_kv, write_kv


def test_keys_and_values_land_at_their_slots() -> None:
    k_cache, v_cache = torch.zeros(6, 2, 4), torch.zeros(6, 2, 4)
    fused = torch.arange(1.0, 37).view(2, 18)[:, :16].view(2, 4, 4)
    write_kv(k_cache, v_cache, torch.tensor([4, 1]), fused[:, :2], fused[:, 2:])
    assert torch.equal(k_cache[[4, 1]], fused[:, :2])
    assert torch.equal(v_cache[[4, 1]], fused[:, 2:])
    assert not bool(k_cache[[0, 2, 3, 5]].any())
    assert not bool(v_cache[[0, 2, 3, 5]].any())


def test_a_rotation_reads_before_it_writes() -> None:
    buffers = torch.arange(2 * 4 * 3.0).view(2, 4, 1, 3)
    expected = buffers[:, [0, 3, 1, 2]].clone()
    move_kv(buffers, torch.tensor([1, 2, 3]), torch.tensor([3, 1, 2]))
    assert torch.equal(buffers, expected)


def test_a_slot_outside_is_an_error() -> None:
    cache, row = torch.zeros(3, 1, 2), torch.ones(1, 1, 2)
    with pytest.raises(IndexError):
        write_kv(cache, cache.clone(), torch.tensor([3]), row, row)
