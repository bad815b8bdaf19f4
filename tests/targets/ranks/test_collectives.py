"""The recorder of collectives: what each rank has entered, as it and the others read it, and what faults do there."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from specdebug.targets.ranks.collectives import KEPT, Board, Collective, FlightRecorder, State


def entered(op: str = "allreduce", number: int = 1, shape: tuple[int, ...] = (2,), **other: str) -> Collective:
    return Collective(
        **{"group": "tp", "dtype": "float32", "caller": "m.py:1 f", **other}, op=op, number=number, shape=shape
    )


def test_a_board_says_what_each_rank_wrote_last() -> None:
    board = Board(3)
    states = [State(5, True, (entered(number=4), entered("broadcast", 5, ()))), State(), State(1, False, (entered(),))]
    for rank, state in enumerate(states):
        board.write(rank, State(9, True, (entered(number=9),) * KEPT))
        board.write(rank, state)
    assert [board.read(rank) for rank in range(3)] == states
    assert board.entered() == [5, 0, 1]


def test_a_board_is_read_across_a_fork() -> None:
    board = Board(2)
    pid = os.fork()
    if pid == 0:
        board.write(1, State(7, True, (entered(),)))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert board.read(1) == State(7, True, (entered(),))


def test_a_state_says_where_its_rank_is() -> None:
    told = "allreduce #1 of float32 2 in group tp (m.py:1 f)"
    assert str(State()) == "has entered no collective"
    assert str(State(1, True, (entered(),))) == f"waits in {told}"
    assert str(State(1, False, (entered(),))) == f"last left {told}"
    assert "of float32 scalar" in str(entered(shape=()))


@pytest.mark.parametrize(
    "other", [entered("broadcast", 2), entered(number=2, shape=(1,)), entered(number=2, dtype="int64")]
)
def test_states_part_at_the_first_of_a_number_that_is_otherwise(other: Collective) -> None:
    mine = State(2, True, (entered(), entered(number=2)))
    assert mine.parts_from(State(2, True, (entered(), other))) == (mine.latest[1], other)


@pytest.mark.parametrize(
    "theirs",
    [
        (entered(), entered(number=2)),
        (entered(),),  # behind
        (entered("broadcast", 2, group="pp"),),  # of another group
        (entered("recv", 2),),  # the other side of a message
        (),
    ],
)
def test_states_that_are_behind_or_elsewhere_do_not_part(theirs: tuple[Collective, ...]) -> None:
    assert State(2, True, (entered(), entered(number=2))).parts_from(State(len(theirs), True, theirs)) is None


def test_a_root_calls_from_another_line_than_the_others_and_does_not_part() -> None:
    root, other = (entered("broadcast", caller=f"m.py:{line} f") for line in (1, 9))
    assert State(1, True, (root,)).parts_from(State(1, True, (other,))) is None
    one, two = (entered("allreduce", caller=f"m.py:{line} f") for line in (1, 9))
    assert State(1, True, (one,)).parts_from(State(1, True, (two,))) == (one, two)


def joined(tmp_path: Path, world: int, body: Callable[[int, FlightRecorder, Board], None]) -> Board:
    """Processes of one server, joined by gloo, each with its recorder; what the board says once all are over."""
    board = Board(world)

    def live(rank: int) -> None:
        torch.set_num_threads(1)
        recorder = FlightRecorder(board, rank, "decode")
        recorder.begin()
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=rank, world_size=world)
        recorder.taken()
        body(rank, recorder, board)

    processes = [get_context("fork").Process(target=live, args=(rank,)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * world
    return board


def test_both_ranks_record_the_same_in_order(tmp_path: Path) -> None:
    def body(rank: int, recorder: FlightRecorder, board: Board) -> None:
        number = torch.ones(3) * (rank + 1)
        dist.all_reduce(number)
        assert number.tolist() == [3, 3, 3]
        dist.broadcast(torch.zeros(2, 2, dtype=torch.int64), src=0)
        parts = [torch.zeros(1), torch.zeros(1)]
        dist.all_gather(parts, torch.tensor([float(rank)]))
        assert [each.item() for each in parts] == [0, 1]
        seen = [(each.op, each.dtype, each.shape) for each in recorder.taken()]
        assert seen[:2] == [("allreduce", "float32", (3,)), ("broadcast", "int64", (2, 2))]
        assert seen[2][0] == "allgather"
        assert {each.group.partition(".")[0] for each in board.read(rank).latest} == {"decode"}
        assert recorder.taken() == []

    board = joined(tmp_path, 2, body)
    first, second = board.read(0), board.read(1)
    assert [each.form for each in first.latest] == [each.form for each in second.latest]
    assert first.entered == second.entered
    assert not first.waits
    assert "test_collectives.py" in str(first.last)
    assert first.parts_from(second) is None


def test_a_fault_does_what_it_says_at_the_next_of_a_model_and_once(tmp_path: Path) -> None:
    def body(rank: int, recorder: FlightRecorder, board: Board) -> None:
        def shapes(how: str) -> list[tuple[int, ...]]:
            recorder.tampering = how
            dist.all_reduce(torch.ones(4, dtype=torch.int64))  # none of a model's forward
            dist.all_reduce(torch.ones(4))
            assert recorder.tampering is None
            return [each.shape for each in recorder.taken()][1:]

        assert shapes("skip") == []
        assert shapes("twice") == [(4,), (4,)]
        assert shapes("shape") == [(2,)]

    joined(tmp_path, 1, body)
