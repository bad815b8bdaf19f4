"""Reads of slots that nothing has written since they were handed out."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from specdebug.kernel_memory.shadows import WrittenSlots
from specdebug.kernel_memory.watch import Watch
from tests.kernel_memory import kernels


def slots(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


@pytest.fixture
def pool(watch: Watch) -> torch.Tensor:
    """Eight slots of two elements, of which slot 0 is padding's."""
    buffer = torch.zeros(8, 2, dtype=torch.int32)
    watch.written.add("the pool", buffer, 1)
    return buffer


def test_a_read_of_what_was_written_is_not_told(watch: Watch, pool: torch.Tensor) -> None:
    watch.written.wrote(pool, slots(3, 4))
    watch.read("attend", "k", pool, slots(0, 3, 4), 0)
    assert watch.poll() == []


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


def test_slots_that_a_buffer_has_not_are_passed_over() -> None:
    written, buffer = WrittenSlots(), torch.zeros(4, 2)
    written.add("the pool", buffer, 1)
    written.wrote(buffer, slots(-1, 9))
    written.moved(slots(9), slots(-5))()
    written.forget(slots(77))
    shadow = written.of(buffer.data_ptr())
    assert shadow is not None
    assert shadow.unwritten([-1, 0, 1, 9]).tolist() == [1]


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
