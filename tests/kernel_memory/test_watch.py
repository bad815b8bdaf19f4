"""What a watch tells of slots that nothing has written, and of static buffers that an earlier replay wrote."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from triton.runtime import interpreter

from specdebug import kernel_memory
from specdebug.kernel_memory.finding import Access, KernelRule, MemoryFinding
from specdebug.kernel_memory.interpreter import HOOKED
from specdebug.kernel_memory.shadows import StampedBuffers, WrittenSlots
from specdebug.kernel_memory.watch import Watch
from specdebug.logs.scan import LogReader
from tests.kernel_memory import kernels

FAR = 1 << 40


def overrun() -> None:
    dst = torch.zeros(2, dtype=torch.int32)
    kernels.copy[(1,)](torch.zeros(2, dtype=torch.int32), dst, FAR, 2, BLOCK=2)


def test_a_site_that_is_off_is_not_told(watch: Watch) -> None:
    kernel_memory.begin([KernelRule("*"), KernelRule("copy.src", "off")])
    overrun()
    assert kernel_memory.poll() == []


def test_assert_mode_ends_the_launch_with_the_finding(watch: Watch) -> None:
    kernel_memory.begin([KernelRule("*", "assert")])
    with pytest.raises(interpreter.InterpreterError, match=r"oob@copy\.src : load of program"):
        overrun()
    overrun_again = pytest.raises(interpreter.InterpreterError, match=r"oob@copy\.src")
    with overrun_again:
        overrun()


def test_when_it_ends_triton_is_as_it_was() -> None:
    owners = {"GridExecutor": interpreter.GridExecutor, "InterpreterBuilder": interpreter.InterpreterBuilder}
    there = [(owners.get(owner, interpreter), name) for owner, name in HOOKED]
    before = [getattr(owner, name) for owner, name in there]
    kernel_memory.begin([KernelRule("*")])
    assert all(getattr(owner, name) is not old for (owner, name), old in zip(there, before, strict=True))
    kernel_memory.end()
    assert [getattr(owner, name) for owner, name in there] == before
    assert (kernel_memory.poll(), kernel_memory.launches()) == ([], {})


def test_a_wrong_call_of_a_kernel_fails_as_it_does_without(watch: Watch) -> None:
    with pytest.raises(TypeError):
        kernels.add_at[(1,)](torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize("kind", ["oob", "unwritten"])
def test_the_line_of_a_finding_is_read_back_from_a_log(kind: str) -> None:
    found = MemoryFinding("gen_kv", "kv_indices", kind, Access("store", (0, 1, 0), "a/b.py:7"), "1 element out", 5, 2)
    assert found.message(9) == (
        f"{kind}@gen_kv.kv_indices : store of program (0, 1, 0) at a/b.py:7, 1 element out; "
        "5 elements in 2 accesses [step 9]"
    )
    reader = LogReader(settings=False)
    reader.feed(f"specdebug inside: {found.message(9)}\n".encode())
    assert [hit.signature for hit in reader.close().ranked()] == [found.signature]


def slots(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


@pytest.fixture
def pool(watch: Watch) -> torch.Tensor:
    """Eight slots of two elements, of which slot 0 is padding's."""
    buffer = torch.zeros(8, 2, dtype=torch.int32)
    watch.written.add("the pool", buffer, 1)
    return buffer


def test_a_read_of_what_was_not_is_told_with_row_and_slots(watch: Watch, pool: torch.Tensor) -> None:
    watch.written.wrote(pool, slots(3))
    watch.read("attend", "k", pool, slots(3, 4, 6), 2)
    [found] = watch.poll()
    assert (found.signature, found.count, found.access.program) == ("unwritten@attend.k", 2, (2, 0, 0))
    assert found.words == "2 slots, the first 4 of the pool, not written since handed out"


def test_a_slot_that_was_given_back_is_unwritten_again(watch: Watch, pool: torch.Tensor) -> None:
    watch.written.wrote(pool, slots(3, 4))
    watch.written.forget(slots(3))
    watch.read("attend", "k", pool, slots(3, 4), 0)
    assert [found.words for found in watch.poll()] == ["slot 3 of the pool, not written since handed out"]
    watch.written.forget()
    watch.read("attend", "k", pool, slots(0, 4), 0)
    assert [found.words for found in watch.poll()] == ["slot 4 of the pool, not written since handed out"]


def test_a_copy_of_what_is_not_written_is_not_written(watch: Watch, pool: torch.Tensor) -> None:
    watch.written.wrote(pool, slots(3, 6))
    watch.written.moved(slots(5, 6), slots(3, 4))()
    watch.read("attend", "k", pool, slots(3, 5, 6), 0)
    assert [found.words for found in watch.poll()] == ["slot 6 of the pool, not written since handed out"]


def test_interpreted_kernels_write_and_read_slots(watch: Watch, pool: torch.Tensor) -> None:
    out = torch.zeros(4, dtype=torch.int32)
    kernels.fill[(1,)](pool, 6, 2, 5, BLOCK=2)
    kernels.copy[(1,)](pool, out, 6, 2, BLOCK=2)
    assert (out.tolist(), watch.poll()) == ([5, 5, 0, 0], [])
    kernels.copy[(1,)](pool, out, 6, 4, BLOCK=4)
    [found] = watch.poll()
    assert (found.signature, found.words) == ("unwritten@copy.src", "slot 4 of the pool, not written since handed out")


def test_a_buffer_that_has_gone_has_no_shadow() -> None:
    written, buffer = WrittenSlots(), torch.zeros(4, 2)
    written.add("the pool", buffer, 1)
    address = buffer.data_ptr()
    assert written.of(address) is not None
    del buffer
    assert written.of(address) is None


def test_buffers_without_a_shadow_are_not_judged(watch: Watch) -> None:
    watch.read("attend", "k", torch.zeros(4, 2), slots(1), 0)
    assert watch.poll() == []


ROWS = 8


def none(_: str) -> None:
    return None


@pytest.fixture
def buffer(watch: Watch) -> torch.Tensor:
    """Eight rows of two, in the first batch."""
    buffer = torch.zeros(ROWS, 2, dtype=torch.int32)
    watch.static.add("kv_indices", buffer)
    watch.static.batch(1)
    return buffer


def replayed(watch: Watch, buffer: torch.Tensor, *, filled: int) -> None:
    """A replay whose preparation fills rows and which reads all."""
    watch.static.begin("draft", none)
    with watch.operations:
        buffer[:filled] = 7
    watch.read_static("attend", "kv_indices", buffer, 0)
    watch.static.end()


def test_what_an_earlier_replay_wrote_is_told_with_both_batches(watch: Watch, buffer: torch.Tensor) -> None:
    replayed(watch, buffer, filled=4)
    watch.static.batch(2)
    replayed(watch, buffer, filled=3)
    [found] = watch.poll()
    assert (found.signature, found.count) == ("stale@attend.kv_indices", 2)
    assert found.words == (
        "2 elements, the first [3, 0] of kv_indices (int32 [8, 2]) in draft's replay in batch 2, "
        "last written by draft's replay in batch 1"
    )


def test_what_was_written_beside_replays_is_stale_but_in_a_buffer_filled_ahead(watch: Watch) -> None:
    late, ahead = torch.zeros(2), torch.zeros(2)
    watch.static.add("positions", late)
    watch.static.add("custom_mask", ahead, ahead=True)
    watch.static.batch(1)
    with watch.operations:
        late.fill_(1)
        ahead.fill_(1)
    watch.static.begin("target", none)
    for name, buffer in (("positions", late), ("custom_mask", ahead)):
        watch.read_static("attend", name, buffer, 0)
    assert [found.signature for found in watch.poll()] == ["stale@attend.positions"]
    watch.static.end()
    watch.static.begin("target", none)
    watch.read_static("attend", "custom_mask", ahead, 0)
    assert [found.signature for found in watch.poll()] == ["stale@attend.custom_mask"]


def test_what_may_be_left_over_is_not_told(watch: Watch, buffer: torch.Tensor) -> None:
    replayed(watch, buffer, filled=8)
    watch.static.begin("target", {"kv_indices": 2 * 6}.get)
    with watch.operations:
        buffer[:5] = 7
    watch.read_static("attend", "kv_indices", buffer, 0)
    [found] = watch.poll()
    assert (found.count, found.words.partition(" of ")[0]) == (2, "2 elements, the first [5, 0]")


def test_reads_beside_replays_are_not_judged(watch: Watch, buffer: torch.Tensor) -> None:
    replayed(watch, buffer, filled=4)
    watch.read_static("attend", "kv_indices", buffer, 0)
    assert watch.poll() == []


def test_interpreted_kernels_stamp_and_read(watch: Watch, buffer: torch.Tensor) -> None:
    out = torch.zeros(4, dtype=torch.int32)
    flat = buffer.view(-1)
    watch.static.begin("draft", none)
    kernels.fill[(1,)](flat, 6, 2, 5, BLOCK=2)
    watch.static.end()
    watch.static.begin("draft", none)
    kernels.copy[(1,)](flat, out, 0, 4, BLOCK=4)
    assert watch.poll() == []
    kernels.copy[(1,)](flat, out, 6, 2, BLOCK=2)
    [found] = watch.poll()
    assert (found.signature, found.count) == ("stale@copy.src", 2)
    kernels.fill[(1,)](flat, 6, 2, 5, BLOCK=2)
    kernels.copy[(1,)](flat, out, 6, 2, BLOCK=2)
    assert watch.poll() == []


def test_of_tensors_in_one_allocation_the_first_gives_the_name() -> None:
    static, whole = StampedBuffers(), torch.zeros(4, 2)
    static.add("kv_indptr", whole)
    static.add("kv_indptr[1]", whole[1])
    shadow = static.of(whole[1])
    assert shadow is not None
    assert shadow.name == "kv_indptr"
    assert static.of(whole.view(torch.int16)) is None
    assert static.of(torch.zeros(2)) is None


def test_a_buffer_that_has_gone_has_no_stamps() -> None:
    static, buffer = StampedBuffers(), torch.zeros(4)
    static.add("positions", buffer)
    start = buffer.untyped_storage().data_ptr()
    assert static.at(start) is not None
    del buffer
    assert static.at(start) is None


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)), max_size=3),
            st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)),
        ),
        max_size=8,
    )
)
def test_a_read_is_stale_where_the_last_write_was_an_earlier_replays(
    replays: list[tuple[list[tuple[int, int]], tuple[int, int]]],
) -> None:
    static, buffer = StampedBuffers(), torch.zeros(ROWS)
    static.add("positions", buffer)
    static.batch(1)
    shadow = static.of(buffer)
    assert shadow is not None
    last = [0] * ROWS
    for number, (writes, (start, stop)) in enumerate(replays, start=1):
        static.begin("draft", none)
        for first, end in writes:
            shadow.wrote(buffer[first:end])
            last[first:end] = [number] * len(last[first:end])
        misread = shadow.read(buffer[start:stop])
        expected = sum(0 < each < number for each in last[start:stop])
        assert (0 if misread is None else misread.count) == expected
        static.end()


Act = Callable[[Tensor], object]
LEFT = 2
"""Elements of the buffer that a replay has not written, of six."""
TABLE = torch.arange(40.0).view(10, 4)


@pytest.fixture
def half_written(watch: Watch) -> Tensor:
    """Six elements of a replay before; the replay that is on has written the first four."""
    buffer = torch.zeros(6, dtype=torch.int64)
    watch.static.add("positions", buffer)
    watch.static.batch(1)
    watch.static.begin("draft", none)
    with watch.operations:
        buffer.fill_(3)
    watch.static.end()
    watch.static.begin("draft", none)
    with watch.operations:
        buffer[:-LEFT].copy_(torch.arange(4))
    return buffer


def counts(watch: Watch, act: Callable[[], object]) -> list[int]:
    with watch.operations:
        act()
    return [found.count for found in watch.poll()]


@pytest.mark.parametrize(
    "read",
    [
        lambda it: it + 1,
        lambda it: it.cumsum(0),
        lambda it: torch.cat((it, it.new_zeros(1))),
        lambda it: torch.nn.functional.embedding(it, TABLE),
        lambda it: TABLE[it],
        lambda it: it.view(3, 2)[1:].sum(),
        lambda it: torch.zeros(6, dtype=torch.int64).copy_(it),
        lambda it: it.add_(1),
        lambda it: it.to(torch.int32),
    ],
)
def test_an_operation_reads_all_that_it_is_given(watch: Watch, half_written: Tensor, read: Act) -> None:
    assert counts(watch, lambda: read(half_written)) == [LEFT]


@pytest.mark.parametrize(
    "look",
    [
        lambda it: it[:4] + 1,
        lambda it: it[torch.tensor([0, 3])],
        lambda it: it.index_select(0, torch.tensor([1, 2])),
        lambda it: it.gather(0, torch.tensor([0])),
        lambda it: it.view(2, 3).reshape(-1).contiguous().to(torch.int64).expand(6),
        lambda it: it.copy_(it),
        lambda it: it.zero_(),
        lambda it: it[4:].fill_(0),
        lambda it: torch.add(torch.ones(6, dtype=torch.int64), 1, out=it),
        lambda it: torch._foreach_copy_([it], [torch.ones(6, dtype=torch.int64)]),
    ],
)
def test_what_was_written_and_what_is_but_viewed_is_not_told(watch: Watch, half_written: Tensor, look: Act) -> None:
    assert counts(watch, lambda: look(half_written)) == []


def test_a_pick_reads_what_its_index_says(watch: Watch, half_written: Tensor) -> None:
    assert counts(watch, lambda: half_written[torch.tensor([0, 5])]) == [1]
    assert counts(watch, lambda: half_written.index_select(0, torch.tensor([4, 5, 1]))) == [2]


@pytest.mark.parametrize(
    "write",
    [
        lambda it: it.fill_(1),
        lambda it: it.copy_(torch.arange(6)),
        lambda it: it[4:].zero_(),
        lambda it: it.__setitem__(torch.tensor([4, 5]), torch.tensor([1, 2])),
        lambda it: it.scatter_(0, torch.tensor([4, 5]), torch.tensor([1, 2])),
        lambda it: it.masked_fill_(torch.arange(6) > 3, 0),
        lambda it: it.index_fill_(0, torch.tensor([4, 5]), 0),
        lambda it: it.index_copy_(0, torch.tensor([4, 5]), torch.tensor([1, 2])),
        lambda it: torch.add(torch.ones(6, dtype=torch.int64), 1, out=it),
        lambda it: torch._foreach_copy_([it], [torch.ones(6, dtype=torch.int64)]),
    ],
)
def test_what_a_replay_writes_it_may_read(watch: Watch, half_written: Tensor, write: Act) -> None:
    assert counts(watch, lambda: write(half_written)) == []
    assert counts(watch, lambda: half_written + 1) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda it: it.__setitem__(torch.tensor([4]), 1),
        lambda it: it.scatter_(0, torch.tensor([5]), 1),
        lambda it: it.masked_fill_(torch.arange(6) == 4, 0),
        lambda it: it.copy_(it),
    ],
)
def test_what_a_write_leaves_out_stays_stale(watch: Watch, half_written: Tensor, write: Act) -> None:
    assert counts(watch, lambda: write(half_written)) == []
    [left] = counts(watch, lambda: half_written + 1)
    assert 0 < left <= LEFT


def test_a_finding_names_runner_buffer_operation_and_line(watch: Watch, half_written: Tensor) -> None:
    with watch.operations:
        half_written.cumsum(0)
    [found] = watch.poll()
    assert found.signature == "stale@draft.positions"
    assert found.message(3).startswith(
        f"stale@draft.positions : load by torch's cumsum at {found.access.line}, 2 elements, the first [4] of "
    )
    assert found.access.line.startswith("kernel_memory/test_watch.py:")


def test_while_it_is_paused_and_while_a_kernel_runs_nothing_is_looked_at(watch: Watch, half_written: Tensor) -> None:
    watch.operations.pause()
    assert counts(watch, lambda: half_written + 1) == []
    watch.operations.go_on()
    out = torch.zeros(2, dtype=torch.int64)
    assert counts(watch, lambda: kernels.copy[(1,)](half_written, out, 0, 2, BLOCK=2)) == []
    assert counts(watch, lambda: half_written + 1) == [LEFT]
