"""A trial, and its result."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["pass", "fail", "untestable"]


@dataclass(frozen=True)
class Trial:
    """One run to be made.

    Attributes:
        number: counts from 0 within a search; a journal holds each number once.
        reverted: the candidates that are switched on (fixes reverted, options set, the commit checked out).
        seed: of whatever is random in the run; see :func:`trial_seed`.
    """

    number: int
    reverted: frozenset[str]
    seed: int


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial.

    Attributes:
        outcome: ``untestable`` when the run could not have shown the failure (it could not be set up, say).
        signature: names the failure, so that equal failures have equal names; None unless it failed.
        seconds: wall time of the run.
        detail: evidence for a reader, such as the end of the output; may be empty.
        besides: what else failed in a run that went on to its end in spite of its failure, as signatures; None when it
            did not, or when that is not known.
    """

    outcome: Outcome
    signature: str | None
    seconds: float
    detail: str = ""
    besides: tuple[str, ...] | None = None


def trial_seed(seed: int, number: int) -> int:
    """Return a trial's seed: 31 bits that depend on both numbers and on nothing else."""
    digest = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
