"""The row table: who owns a row, and what a store past its end hits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.errors import IllegalAddress
from specdebug.engine.memory.arena import FillMode, FillPolicy
from specdebug.engine.textbook.memory.req_to_token import ReqToToken


def _table(rows: int = 3, width: int = 10, *, guards: bool = False, fill: FillMode = "garbage") -> ReqToToken:
    return ReqToToken(rows, width, fill=FillPolicy(fill), guards=guards)


@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=40))
@settings(max_examples=60)
def test_rows_go_out_lowest_first_and_never_twice(actions: list[int | None]) -> None:
    """Against a set; None allocates, a number frees the so-manieth row in use."""
    table, used = _table(4), set[int]()
    for action in actions:
        if action is None:
            row = table.alloc_row()
            expected = min({1, 2, 3, 4} - used, default=None)
            assert row == expected
            if row is not None:
                used.add(row)
        elif used:
            row = sorted(used)[action % len(used)]
            table.free_row(row)
            used.remove(row)
        assert table.num_free_rows == 4 - len(used)


@pytest.mark.parametrize("row", [0, 2, 4, -1])
def test_a_row_that_is_not_in_use_cannot_be_freed(row: int) -> None:
    table = _table(3)
    table.alloc_row()
    with pytest.raises(ValueError, match=f"row {row} is not in use"):
        table.free_row(row)


@pytest.mark.parametrize("guards", [False, True])
def test_the_padding_row_is_zero_whatever_memory_held(guards: bool) -> None:
    table = _table(guards=guards, fill="garbage")
    assert table.table.shape == (4, 10)
    assert table.table.dtype == torch.int32
    assert table.table[0].tolist() == [0] * 10
    assert bool(table.table[1:].ne(0).any())
    assert table.check_guards() == []


@given(start=st.integers(0, 9), data=st.data(), guards=st.booleans())
@settings(max_examples=40)
def test_a_write_inside_the_row_is_read_back_and_changes_nothing_else(
    start: int, data: st.DataObject, guards: bool
) -> None:
    length = data.draw(st.integers(0, 10 - start))
    table = _table(guards=guards)
    before = table.table.clone()
    slots = torch.arange(100, 100 + length)
    table.write(2, start, slots)
    read = table.slots(2, start, start + length)
    assert read.dtype == torch.int64
    assert torch.equal(read, slots)
    before[2, start : start + length] = slots.to(torch.int32)
    assert torch.equal(table.table, before)
    assert table.check_guards() == []


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9), st.integers(0, 6)), max_size=6), st.booleans())
@settings(max_examples=80)
def test_rows_written_together_are_as_if_written_in_turn(places: list[tuple[int, int, int]], guards: bool) -> None:
    """Overruns too, up to the end of the table and beyond it."""
    together, in_turn = (_table(guards=guards) for _ in range(2))
    slots = torch.arange(100, 100 + sum(size for _, _, size in places))

    def write_in_turn() -> None:
        for (row, start, _), share in zip(places, slots.split([size for _, _, size in places]), strict=True):
            in_turn.write(row, start, share)

    failures = []
    for write in (lambda: together.write_rows(places, slots), write_in_turn):
        try:
            failures.append(write())
        except IllegalAddress as error:
            failures.append(str(error))
    assert failures[0] == failures[1]
    assert torch.equal(together.cells, in_turn.cells)
    assert together.check_guards() == in_turn.check_guards()


@pytest.mark.gpu
def test_a_gpu_gets_rows_in_one_copy_and_nobody_waits() -> None:
    tables = [
        ReqToToken(3, 10, fill=FillPolicy("zeros"), guards=True, device=torch.device(device))
        for device in ("cuda", "cpu")
    ]
    places, slots = [(1, 8, 3), (3, 0, 1), (2, 4, 2)], torch.tensor([1, 2, 3, 7, 5, 6])
    tables[0].write_rows([(1, 0, 1)], torch.tensor([1]))
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            tables[0].write_rows(places, slots)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [event.name for event in profile.events()].count("cudaMemcpyAsync") == 1
    tables[1].write_rows([(1, 0, 1), *places], torch.cat([torch.tensor([1]), slots]))
    assert torch.equal(tables[0].cells.cpu(), tables[1].cells)
    assert tables[0].check_guards() == tables[1].check_guards() != []


@pytest.mark.parametrize(
    ("row", "victim"), [(1, "req_to_token.row2"), (2, "req_to_token.row3"), (3, "end of req_to_token")]
)
def test_with_guards_a_long_write_names_the_row_it_would_have_hit(row: int, victim: str) -> None:
    table = _table(guards=True, fill="zeros")
    table.write(row, 8, torch.tensor([1, 2, 3, 4, 5]))
    (found,) = table.check_guards()
    assert (found.buffer, found.victim) == ("req_to_token.row", victim)
    assert (found.first_byte, found.overran, found.damaged) == (0, 12, 12)
    assert table.check_guards() == []
    table.write(row, 9, torch.tensor([1, 2]))
    assert [v.overran for v in table.check_guards()] == [4]


@pytest.mark.parametrize("guards", [False, True])
def test_leaving_the_table_is_an_illegal_address(guards: bool) -> None:
    table = _table(guards=guards)
    past = table.table.stride(0)
    with pytest.raises(IllegalAddress, match=r"req_to_token\.write"):
        table.write(3, past - 1, torch.tensor([1, 2]))
    with pytest.raises(IllegalAddress, match=r"req_to_token\.write"):
        table.write(-1, 0, torch.tensor([1]))
