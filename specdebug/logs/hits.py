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
    """A check that says what it found: an assertion on the device or of C++, NaN in the logits, a leaking pool."""
    DEVICE = 4
    """A CUDA error, which surfaces later and elsewhere than what caused it."""
    FATAL = 5
    """An exception of which the engine says that a process of its own ended with it."""
    DEATH = 6
    """The end of a process by a fault of its own, or of the machine's memory."""
    HANG = 7
    """A watchdog of the engine's, or a call between its processes that was not answered."""
    REQUEST = 8
    """A request that the engine gives up, and goes on without."""
    REPORTED = 9
    """The reason that a test runner gives for a failed test."""
    EXCEPTION = 10
    """Any other exception or failed assertion of Python's; a time limit that was exceeded."""
    SAID = 11
    """An error of drafting or verifying that an engine logs without an exception."""
    LOGGED = 12
    """Any other error that an engine logs without an exception."""
    LEFT = 13
    """A consequence of another failure: killed from outside, waiting for a rank or a server that is gone."""
    TEST = 14
    """A test that failed, without a reason."""
    MENTION = 15
    """A failure that was tried again or is said as a warning; an exception that another message quotes."""


class Hit(NamedTuple):
    """A failure that a line tells of. ``means``: the kind of damage, which may be more telling than the signature's
    kind: ``oob`` for an assertion on the device about an index."""

    signature: str
    strength: Strength
    means: str
    vague: bool = False
    """The line does not tell failures apart, as a lone ``AssertionError`` does not: what stands around it must."""
