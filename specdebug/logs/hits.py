"""The failures that a line of a log can tell of, and the weight of each kind of message."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from specdebug import async_probe

KINDS = (
    *async_probe.KINDS, "accept-drop", "assert", "ends", "error", "graphs", "guard", "illegal-address",
    "launch-failure", "mismatch", "oom", "pools", "sampling", "stale", "unwritten",
)  # fmt: skip
"""The kinds of our violations that have a site."""


class Strength(IntEnum):
    """The weight of a message, the greatest first: one that names a place outranks one that names only the end."""

    VERDICT = 0
    """A verdict of ours: the signature that names a failure, of all that was found."""
    NAMED = 1
    """Any other of our signatures."""
    PROBE = 2
    """An asynchronous probe of SGLang's, in its own words."""
    CHECK = 3
    """A check that says what it found: an assertion on the device, NaN in the logits, a leaking pool."""
    DEVICE = 4
    """A CUDA error, which surfaces later and elsewhere than what caused it."""
    DEATH = 5
    """The end of a process by a fault of its own, or of the machine's memory."""
    HANG = 6
    """A time limit that was exceeded."""
    EXCEPTION = 7
    """Any other exception or failed assertion of Python's."""
    LEFT = 8
    """A consequence of another failure: killed from outside, waiting for a rank that is gone."""
    MENTION = 9
    """An exception that another message quotes, as those that are tried again do."""
    TEST = 10
    """A test that failed, without a reason."""


class Hit(NamedTuple):
    """A failure that a line tells of. ``means``: the kind of damage, which may be more telling than the signature's
    kind: ``oob`` for an assertion on the device about an index."""

    signature: str
    strength: Strength
    means: str
