"""Tags ride on addresses, whatever is added to these."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specdebug.kernel_memory.regions import MAX_TAG, base_of, plain, plain_of, tag_of, tags_of

ADDRESSES = st.integers(0, (1 << 48) - 1)
OFFSETS = st.integers(-(1 << 48), 1 << 48)


@given(st.integers(0, MAX_TAG), ADDRESSES, OFFSETS)
def test_tag_and_address_are_told_apart(tag: int, address: int, offset: int) -> None:
    pointer = (base_of(tag) + address + offset) % (1 << 64)
    assert (tag_of(pointer), plain_of(pointer)) == (tag, address + offset)
    block = np.array([pointer], dtype=np.uint64)
    assert (tags_of(block).tolist(), plain(block).tolist()) == ([tag], [address + offset])
