"""Pointers that come from memory or as numbers: they belong to the tensor that lies there."""

from __future__ import annotations

import ctypes

import pytest
import torch

pytest.importorskip("triton")

from specdebug.kernel_memory.watch import Watch
from tests.kernel_memory import kernels


def layers(count: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Some tensors of 4 elements, and their addresses."""
    buffers = [torch.arange(4, dtype=torch.int32) + 10 * n for n in range(count)]
    return buffers, torch.tensor([each.data_ptr() for each in buffers])


def test_what_they_lead_to_may_be_read(watch: Watch) -> None:
    buffers, pointers = layers(2)
    out = torch.zeros(2, dtype=torch.int32)
    kernels.through_pointers[(2,)](pointers, out, 3)
    assert out.tolist() == [3, 13]
    assert watch.poll() == []
    assert len(buffers) == 2


def test_leaving_it_is_charged_to_the_argument_that_held_the_pointer(watch: Watch) -> None:
    buffers, pointers = layers(2)
    out = torch.zeros(2, dtype=torch.int32)
    kernels.through_pointers[(2,)](pointers, out, 1 << 40)
    [found] = watch.poll()
    assert (found.signature, found.count) == ("oob@through_pointers.pointers", 2)
    assert "behind the end of int32 [4]" in found.words
    assert out.tolist() == [-1, -1]
    assert len(buffers) == 2


def test_a_pointer_that_is_an_argument_by_itself(watch: Watch) -> None:
    buffer, out = torch.arange(4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    kernels.through_number[(1,)](buffer.data_ptr(), out, 2)
    assert (out.item(), watch.poll()) == (2, [])
    kernels.through_number[(1,)](buffer.data_ptr(), out, 1 << 40)
    assert [found.signature for found in watch.poll()] == ["oob@through_number.address"]


def test_memory_that_torch_does_not_know_is_read_and_not_told(watch: Watch) -> None:
    foreign = (ctypes.c_int32 * 4)(7, 8, 9, 10)
    out = torch.zeros(1, dtype=torch.int32)
    kernels.through_number[(1,)](ctypes.addressof(foreign), out, 1)
    assert (out.item(), watch.poll()) == (8, [])


def test_an_address_that_is_nobodys_is_told_and_does_not_end_the_process(watch: Watch) -> None:
    out = torch.zeros(1, dtype=torch.int32)
    kernels.through_number[(1,)](1 << 45, out, 0)
    [found] = watch.poll()
    assert found.words == "address 0x200000000000 is memory of no tensor"
    assert found.signature == "oob@through_number.address"
    assert out.item() == -1


def test_a_tensor_that_has_gone_is_not_an_owner(watch: Watch) -> None:
    buffers, pointers = layers(1)
    out = torch.zeros(1, dtype=torch.int32)
    kernels.through_pointers[(1,)](pointers, out, 0)
    fresh, moved = layers(1)
    kernels.through_pointers[(1,)](moved, out, 1)
    assert (out.item(), watch.poll()) == (1, [])
    assert len(buffers) == len(fresh) == 1
