"""Rows of next-n layers written out, of a request with two earlier positions and of one with a single one."""

from __future__ import annotations

import torch

from specdebug.engine.kernels.mtp_rows import MTPRows, mtp_rows

# rows 0 .. 2 of the state: what follows the last two positions, and the hidden states there (id / 10)
RECENT_IDS = torch.tensor([[0, 0], [11, 12], [-1, 22]])
RECENT_HIDDEN = RECENT_IDS.unsqueeze(-1) / 10
INPUT_IDS = torch.tensor([13, 14, 0, 23, 24, 25])
FEATURES = torch.tensor([1.3, 1.4, 99.0, 2.3, 2.4, 2.5]).unsqueeze(1)


def rows_of() -> MTPRows:
    return mtp_rows(
        INPUT_IDS,
        FEATURES,
        RECENT_IDS,
        RECENT_HIDDEN,
        req_pool_indices=torch.tensor([1, 2]),
        seq_lens=torch.tensor([7, 1]),
        accept_lengths=torch.tensor([2, 3]),
    )


def test_recent_positions_come_before_the_new_ones_and_a_short_request_repeats_its_last() -> None:
    found = rows_of()
    assert found.next_ids.tolist() == [11, 12, 13, 14, 0, 22, 23, 24, 25, 25]
    assert found.positions.tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]
    expected = torch.tensor([1.1, 1.2, 1.3, 1.4, 99.0, 2.2, 2.3, 2.4, 2.5, 2.5])
    assert torch.equal(found.hidden_states.flatten(), expected)
    assert found.last.tolist() == [3, 8]


def test_the_last_accepted_positions_are_kept() -> None:
    found = rows_of()
    assert found.kept_ids.tolist() == [[13, 14], [24, 25]]
    assert torch.equal(found.kept_hidden.squeeze(-1), torch.tensor([[1.3, 1.4], [2.4, 2.5]]))


def test_one_layer_needs_no_earlier_position() -> None:
    found = mtp_rows(
        torch.tensor([5, 0]),
        torch.tensor([[0.5], [9.0]]),
        torch.empty((2, 0), dtype=torch.int64),
        torch.empty((2, 0, 1)),
        torch.tensor([1]),
        torch.tensor([4]),
        torch.tensor([1]),
    )
    assert found.next_ids.tolist() == [5, 0]
    assert found.positions.tolist() == [4, 5]
    assert found.last.tolist() == [0]
    assert found.kept_ids.shape == (1, 0)
    assert found.kept_hidden.shape == (1, 0, 1)
