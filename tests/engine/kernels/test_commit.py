"""Accepted slots, predictions and features of one batch written out."""

from __future__ import annotations

import torch

from specdebug.engine.kernels.commit import accepted_locs, compact

INDEX = torch.tensor([[0, 2, -1], [4, 5, 7]], dtype=torch.int32)  # nodes 0, 2 of request 0; 0, 1, 3 of request 1
SLOTS = torch.arange(10, 18)


def test_entries_without_a_node_keep_what_the_buffers_held() -> None:
    src_loc, tgt_loc = torch.full((2, 3), -7), torch.full((2, 3), -8)
    src, tgt = accepted_locs(INDEX, SLOTS, 4, src_loc, tgt_loc)
    assert src.tolist() == [[10, 12, -7], [14, 15, 17]]
    assert tgt.tolist() == [[10, 11, -8], [14, 15, 16]]


def test_a_path_longer_than_its_tree_has_no_place_for_the_rest() -> None:
    buffer = torch.full((1, 3), -7)
    src, tgt = accepted_locs(torch.tensor([[0, 1, -1]], dtype=torch.int32), SLOTS[:2], 2, buffer, buffer)
    assert src.tolist() == tgt.tolist() == [[10, 11, -7]]


def test_rows_past_the_accepted_repeat_the_root_and_predict_nothing() -> None:
    predict = torch.arange(100, 108, dtype=torch.int32)
    features = torch.arange(8.0).unsqueeze(1)
    tokens, rows, lengths = compact(INDEX, predict, torch.tensor([1, 2], dtype=torch.int32), features, 4)
    assert tokens.tolist() == [100, 102, 0, 0, 104, 105, 107, 0]
    assert rows.flatten().tolist() == [0, 2, 0, 0, 4, 5, 7, 4]
    assert lengths.tolist() == [2, 3]
    assert tokens.dtype == lengths.dtype == torch.int64
