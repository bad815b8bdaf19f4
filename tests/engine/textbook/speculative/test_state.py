"""State between iterations: rows apart from each other, and copies that later stores leave alone."""

from __future__ import annotations

import torch

from specdebug.engine.textbook.speculative.draft import DraftStateTable


def table() -> DraftStateTable:
    return DraftStateTable(4, topk=2, hidden_size=3, dtype=torch.float32, device=torch.device("cpu"))


def test_rows_come_back_as_stored_in_any_order() -> None:
    state = table()
    rows = torch.tensor([3, 1])
    state.store_lengths(rows, torch.tensor([30, 10]), torch.tensor([7, 5]))
    p = torch.tensor([[0.6, 0.4], [0.9, 0.1]])
    index = torch.tensor([[8, 9], [2, 3]])
    hidden = torch.arange(6.0).view(2, 3)
    state.store_draft(rows, p, index, hidden)
    back = state.gather(torch.tensor([1, 3]))
    assert back.seq_lens.tolist() == [10, 30]
    assert back.bonus.tolist() == [5, 7]
    assert torch.equal(back.topk_p, p.flip(0))
    assert torch.equal(back.topk_index, index.flip(0))
    assert torch.equal(back.hidden_states, hidden.flip(0))


def test_what_was_gathered_does_not_follow_later_stores() -> None:
    """An iteration publishes new lengths while the lengths before it are still in use."""
    state = table()
    rows = torch.tensor([2])
    state.store_lengths(rows, torch.tensor([4]), torch.tensor([1]))
    before = state.gather(rows)
    state.store_lengths(rows, torch.tensor([9]), torch.tensor([6]))
    assert before.seq_lens.tolist() == [4]
    assert before.bonus.tolist() == [1]
    assert state.gather(rows).seq_lens.tolist() == [9]


def test_the_table_keeps_its_own_copy_of_what_is_stored() -> None:
    """Graph runners hand out views of buffers that the next replay overwrites."""
    state = table()
    rows = torch.tensor([1])
    hidden = torch.ones(1, 3)
    state.store_draft(rows, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.int64), hidden)
    hidden.fill_(-1)
    assert state.gather(rows).hidden_states.tolist() == [[1.0, 1.0, 1.0]]


def test_the_padding_row_is_all_zeros() -> None:
    padding = table().gather(torch.tensor([0]))
    for value in (padding.seq_lens, padding.bonus, padding.topk_p, padding.topk_index, padding.hidden_states):
        assert not bool(value.any())
