"""Acts on memory that is made for them: what they leave alone."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.faults.acts import ranks
from specdebug.faults.acts.timing import bonus_read_early, outputs_read_early, programs_reversed
from specdebug.faults.model import Call, Fault, Injection, NotHere, Shot


def shot_of(view: Any, batch: list[Any], call: Call | None = None, site: Any = None) -> tuple[Shot, list[Injection]]:
    ledger: list[Injection] = []
    shot = Shot(Fault("x"), 0, 4, view, random.Random(0), ledger.append, batch, site, call)
    return shot, ledger


def moved(max_new_tokens: int) -> tuple[torch.Tensor, Shot, list[Injection]]:
    """Slots 2 and 3 are to move to 1 and 2, of a request that has these slots and a prompt of two tokens."""
    buffers = torch.arange(10.0).reshape(2, 5, 1, 1)
    call = Call(lambda: None, (buffers, torch.tensor([1, 2]), torch.tensor([2, 3])))
    sampling = SimpleNamespace(max_new_tokens=max_new_tokens)
    request = SimpleNamespace(rid="r", row=0, prompt_ids=[7, 7], kv_allocated=4, sampling=sampling)
    return buffers, *shot_of(SimpleNamespace(table=torch.tensor([[0, 1, 2, 3]])), [request], call)


def test_programs_reversed_read_what_was_written_already() -> None:
    buffers, shot, ledger = moved(max_new_tokens=8)
    programs_reversed(shot)
    assert buffers[0, :, 0, 0].tolist() == [0, 3, 3, 3, 4]  # in order it would be 0, 2, 3
    assert shot.wrapped.made
    (done,) = ledger
    assert (done.index, done.before, done.after, done.count) == ((0, 1, 0, 0), 2.0, 3.0, 2)


def test_what_lies_behind_a_request_s_last_token_is_no_damage_and_is_left_to_the_engine() -> None:
    buffers, shot, ledger = moved(max_new_tokens=0)
    untouched = buffers.clone()
    with pytest.raises(NotHere, match="lies behind its request's last token"):
        programs_reversed(shot)
    assert torch.equal(buffers, untouched)
    assert (ledger, shot.wrapped.made) == ([], False)


def bonus_written(before: int, after: int, max_new_tokens: int = 6) -> tuple[torch.Tensor, Shot, list[Injection]]:
    """A request's newest token, about to be written to row 1 of the table."""
    table = torch.tensor([7, before])
    call = Call(lambda: table.__setitem__(1, after), ())
    sampling = SimpleNamespace(max_new_tokens=max_new_tokens)
    request = SimpleNamespace(rid="r", row=1, output_ids=[5], sampling=sampling)
    state = SimpleNamespace(bonus=table, seq_lens=None)
    shot, ledger = shot_of(SimpleNamespace(state=state, spec=SimpleNamespace(num_steps=3)), [request], call)
    return table, shot, ledger


def test_a_token_read_early_is_the_one_before_until_the_next_step_has_read_it() -> None:
    table, shot, ledger = bonus_written(before=3, after=4)
    bonus_read_early(shot)
    assert table.tolist() == [7, 3]
    assert [(done.before, done.after, done.changed) for done in ledger] == [(4, 3, True)]
    for write in shot.after_gather:
        write()
    assert table.tolist() == [7, 4]


def test_a_token_that_was_there_before_cannot_be_read_early() -> None:
    """The engine's write is made all the same, and a later step is waited for."""
    table, shot, ledger = bonus_written(before=4, after=4)
    with pytest.raises(NotHere, match="the same"):
        bonus_read_early(shot)
    assert (table.tolist(), shot.wrapped.made, ledger, shot.after_gather) == ([7, 4], True, [], [])


def test_nothing_is_read_early_of_a_request_that_may_end_with_the_step() -> None:
    table, shot, ledger = bonus_written(before=3, after=4, max_new_tokens=5)
    with pytest.raises(NotHere, match="cannot end with this step"):
        bonus_read_early(shot)
    assert (table.tolist(), shot.wrapped.made, ledger) == ([7, 3], False, [])


def test_accepted_tokens_that_were_read_before_cannot_be_read_early() -> None:
    accepted = torch.tensor([[1, 9, 0]])
    call = Call(lambda tensor: tensor, (accepted,))
    shot, ledger = shot_of(SimpleNamespace(), [SimpleNamespace(rid="r", output_ids=[9])], call)
    with pytest.raises(NotHere, match="the same"):
        outputs_read_early(shot)
    assert (shot.wrapped.made, ledger) == (False, [])


def ranks_of(arriving: bool = True) -> tuple[Any, list[tuple[int, str]]]:
    """Two ranks, and what each is told to do."""
    told: list[tuple[int, str]] = []
    return SimpleNamespace(
        ranks=SimpleNamespace(world=2, arriving=arriving, tamper=lambda *how: told.append(how))
    ), told


@pytest.mark.parametrize("rank", [None, 0])
@pytest.mark.parametrize(
    ("act", "how"),
    [
        (ranks.rank_dead, "dead"),
        (ranks.rank_hangs, "hangs"),
        (ranks.rank_late, "late"),
        (ranks.rank_behind, "behind"),
        (ranks.collective_skipped, "skip"),
        (ranks.collective_twice, "twice"),
        (ranks.collective_shape, "shape"),
        *(
            (act, act.__name__)
            for act in (ranks.transfer_lost, ranks.transfer_cut, ranks.transfer_misplaced, ranks.transfer_late)
        ),
    ],
)
def test_a_class_of_ranks_tells_one_of_them_what_to_do(act: Any, how: str, rank: int | None) -> None:
    view, told = ranks_of()
    shot, ledger = shot_of(view, [])
    shot.fault = Fault("x", rank=rank)
    act(shot)
    to = 1 if rank is None else rank
    assert told == [(to, how)]
    assert [each.changed for each in ledger] == [True]
    assert f"rank {to}" in str(ledger[0])


def test_a_rank_cannot_fall_behind_where_nothing_arrives() -> None:
    view, told = ranks_of(arriving=False)
    shot, ledger = shot_of(view, [])
    with pytest.raises(NotHere, match="no request arrives"):
        ranks.rank_behind(shot)
    assert (told, ledger) == ([], [])
