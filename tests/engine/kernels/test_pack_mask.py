"""Packed masks hold every bit where FlashInfer looks for it: little-endian bytes, sequences on bytes of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.errors import IllegalAddress
from specdebug.engine.kernels.pack_mask import pack_mask, packed_size

INT32 = torch.int32


@settings(max_examples=100, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    q_len=st.integers(1, 9),
    gap=st.integers(0, 3),
    seed=st.integers(0, 10**6),
)
def test_every_sequence_is_packed_as_numpy_packs_it(lengths: list[int], q_len: int, gap: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor(lengths) * q_len
    starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]) + gap
    bits = torch.randint(0, 2, (int(starts[-1]),), generator=generator).to(torch.bool)
    kv_indptr = torch.tensor([0, *np.cumsum(lengths)], dtype=INT32) + 5  # only differences count
    packed = torch.full((packed_size(bits.numel(), len(lengths)),), 0xAA, dtype=torch.uint8)
    packed_indptr = torch.full((len(lengths),), -1, dtype=INT32)
    pack_mask(bits, starts[:-1], kv_indptr, q_len, packed, packed_indptr)
    touched = np.zeros(packed.numel(), dtype=bool)
    for b, size in enumerate(sizes.tolist()):
        own = bits[int(starts[b]) : int(starts[b]) + size].numpy()
        first = int(packed_indptr[b])
        expected = np.packbits(own, bitorder="little")
        assert not touched[first : first + expected.size].any(), "sequences share a byte"
        touched[first : first + expected.size] = True
        assert packed[first : first + expected.size].tolist() == expected.tolist()
    assert (packed.numpy()[~touched] == 0xAA).all()


def test_bits_past_the_end_of_the_mask_are_an_illegal_address() -> None:
    bits = torch.ones(12, dtype=torch.bool)
    packed, packed_indptr = torch.zeros(8, dtype=torch.uint8), torch.zeros(1, dtype=INT32)
    with pytest.raises(IllegalAddress, match=r"pack_mask\.bits"):
        pack_mask(bits, torch.tensor([4]), torch.tensor([0, 10], dtype=INT32), 1, packed, packed_indptr)
