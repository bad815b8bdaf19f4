"""What a line of a log can tell of, and how much each kind of message tells."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from specdebug import async_probe

KINDS = (
    *async_probe.KINDS, "accept-drop", "assert", "error", "guard", "illegal-address", "launch-failure", "mismatch",
    "oom", "pools",
)  # fmt: skip
"""What a violation of ours can be that has a site."""


class Strength(IntEnum):
    """How much a message tells, the best first: what names a place outranks what only says that it ended."""

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
    """How a process ended by a fault of its own, or of the machine's memory."""
    HANG = 6
    """That something took too long."""
    EXCEPTION = 7
    """Any other exception or failed assertion of Python's."""
    LEFT = 8
    """What is left once something else has failed: killed from outside, waiting for a rank that is gone."""
    MENTION = 9
    """An exception that another message quotes, as those that are tried again do."""
    TEST = 10
    """That a test failed, and nothing about why."""


class Hit(NamedTuple):
    """A failure that a line tells of.

    ``means``: what kind of damage it is when that is more than the signature's own kind says, as for an assertion on
    the device about an index (``oob``).
    """

    signature: str
    strength: Strength
    means: str
