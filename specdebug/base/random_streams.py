"""Named, seeded random streams: the only source of randomness in the harness.

A stream is found by its name, never by how often something else was drawn before it, so adding a request to a
scenario leaves the prompts of the others as they were.
"""

from __future__ import annotations

import hashlib
import random


def stream(seed: int, *name: str | int) -> random.Random:
    """A generator for ``name`` under ``seed``, the same in every process and Python: by SHA-256, not ``hash()``."""
    digest = hashlib.sha256(repr((seed, *name)).encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


def derive_seed(seed: int, *name: str | int) -> int:
    """A seed in [0, 2**63) for ``name``, for consumers that keep generators of their own."""
    return stream(seed, *name).getrandbits(63)
