"""Static buffers of graphs: reads of what an earlier replay wrote."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from specdebug.kernel_memory.shadows import StampedBuffers
from specdebug.kernel_memory.watch import Watch
from tests.kernel_memory import kernels

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


def test_what_only_the_construction_wrote_is_never_stale(watch: Watch, buffer: torch.Tensor) -> None:
    replayed(watch, buffer, filled=3)
    replayed(watch, buffer, filled=3)
    assert watch.poll() == []


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


def test_a_buffer_that_has_gone_has_no_shadow() -> None:
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
