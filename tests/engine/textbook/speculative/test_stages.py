"""What a step reads back and leaves for the next, and who is made with which parts."""

import pytest
import torch

from specdebug.engine.textbook.speculative.accept import Compacted
from specdebug.engine.textbook.speculative.draft import DraftState, StateTable
from specdebug.engine.textbook.speculative.worker import EagleWorker, bonus_of, read_back
from specdebug.engine.workers.v1 import EagleWorkerV1
from tests.engine.conftest import Lab
from tests.engine.driving import build
from tests.engine.textbook.speculative.test_worker import TREE, base


def test_lengths_predictions_and_the_last_token_that_counts_are_read_back() -> None:
    """Two requests with trees of four: three tokens accepted, and one."""
    compacted = Compacted(torch.tensor([5, 6, 7, 0, 8, 0, 0, 0]), torch.zeros(8, 2), torch.tensor([3, 1]))
    assert read_back(compacted).wait() == [[3, 5, 6, 7, 0], [1, 8, 0, 0, 0]]
    index = torch.tensor([[0, 2, 3], [4, -1, -1]], dtype=torch.int32)
    assert read_back(compacted, index).wait() == [[3, 5, 6, 7, 0, 0, 2, 3], [1, 8, 0, 0, 0, 4, -1, -1]]
    assert bonus_of(compacted, compacted.accept_lengths).tolist() == [7, 8]
    assert bonus_of(compacted, torch.tensor([2, 1])).tolist() == [6, 8]


@pytest.mark.parametrize(
    ("worker", "made", "forwards"),
    [("v1", EagleWorkerV1, {"draft", "verify"}), ("v2", EagleWorker, {"draft", "verify", "extend"})],
)
def test_either_worker_has_runners_for_forwards_of_a_fixed_size(
    lab: Lab, worker: str, made: type, forwards: set[str]
) -> None:
    found = build(base(lab, worker=worker, **TREE)).view.eagle
    assert type(found) is made
    assert {name for name in ("draft", "verify", "extend") if getattr(found.runners, name) is not None} == forwards


def test_rows_come_back_as_stored_in_any_order_and_neither_side_follows_later_stores() -> None:
    """An iteration publishes new lengths while those before it are in use; graph runners hand out views of buffers that
    the next replay overwrites."""
    columns = ((2,), torch.float32), ((2,), torch.int64), ((3,), torch.float32)
    state = StateTable(DraftState, 4, torch.device("cpu"), *columns)
    rows, lengths = torch.tensor([3, 1]), (torch.tensor([30, 10]), torch.tensor([7, 5]))
    values = torch.tensor([[0.6, 0.4], [0.9, 0.1]]), torch.tensor([[8, 9], [2, 3]]), torch.arange(6.0).view(2, 3)
    expected = [value.clone().flip(0) for value in (*lengths, *values)]
    state.store_lengths(rows, *lengths)
    state.store(rows, *values)
    values[2].fill_(-1)
    back = state.gather(torch.tensor([1, 3]))
    state.store_lengths(rows, lengths[0] + 1, lengths[1] + 1)
    found = [back.seq_lens, back.bonus, back.topk_p, back.topk_index, back.hidden_states]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert state.gather(rows).seq_lens.tolist() == [31, 11]
    assert not any(bool(value.any()) for value in vars(state.read(torch.tensor([0]))).values()), "the padding row"
