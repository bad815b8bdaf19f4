"""Pointers that carry their origin: the bits of an address that no machine uses hold a tag.

Whatever a kernel does with a pointer (add, broadcast, select, reshape, gather), every lane keeps the tag of what it was
computed from. An address is held as ``tag << BITS`` plus the plain address, so an offset may lead far in front of a
tensor or behind it, 2^49 bytes either way, and the tag is still told.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BITS = 50
"""Of an address; above them lies the tag."""
MAX_TAG = (1 << (64 - BITS)) - 2
UNTAGGED = 0
"""The tag of a plain address."""
_HALF = 1 << (BITS - 1)
_ALL = (1 << 64) - 1
Addresses = np.ndarray[Any, np.dtype[np.uint64]]
Plain = np.ndarray[Any, np.dtype[np.int64]]


def base_of(tag: int) -> int:
    """What is added to a plain address to tag it."""
    return tag << BITS


def tag_of(address: int) -> int:
    """The tag of one address."""
    return ((address + _HALF) & _ALL) >> BITS


def tags_of(addresses: Addresses) -> Addresses:
    """The tag of each address."""
    tags: Addresses = (addresses + np.uint64(_HALF)) >> np.uint64(BITS)
    return tags


def plain(addresses: Addresses) -> Plain:
    """The plain addresses; one that an offset took below zero is negative."""
    bare: Addresses = addresses - (tags_of(addresses) << np.uint64(BITS))
    return bare.view(np.int64)


def plain_of(address: int) -> int:
    """One plain address."""
    return address - base_of(tag_of(address)) if address <= _ALL - _HALF else address - (1 << 64)
