"""A trial, and its result."""

import hashlib
import random
from dataclasses import dataclass
from typing import Literal


def stream(seed: int, *name: str | int) -> random.Random:
    """A generator for ``name`` under ``seed``, the same in every process and Python: by SHA-256, not ``hash()``."""
    digest = hashlib.sha256(repr((seed, *name)).encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


def derive_seed(seed: int, *name: str | int) -> int:
    """A seed in [0, 2**63) for ``name``, for consumers that keep generators of their own."""
    return stream(seed, *name).getrandbits(63)


Warm = Literal["cold", "imported", "built"]
"""The start of a run's worker: with nothing of its engine, with the engine imported, or built."""
Outcome = Literal["pass", "fail", "untestable"]


@dataclass(frozen=True)
class Trial:
    """One run to be made, counted from 0 within a search, with the ``reverted`` candidates switched on (fixes reverted,
    options set, the commit checked out). ``seed`` is that of whatever is random in it."""

    number: int
    reverted: frozenset[str]
    seed: int


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial, which took ``seconds`` of wall time.

    Attributes:
        outcome: ``untestable`` when the run could not have shown the failure (it could not be set up, say).
        signature: names the failure, so that equal failures have equal names; None unless it failed.
        detail: evidence for a reader, such as the end of the output; may be empty.
        besides: signatures of what else failed in a run that went on to its end; None if it did not or is unknown.
        ran: the reverted fixes of which some line is known to have run.
        counted: ``ran`` holds every one whose lines ran, however the run ended.
        not_engine_code: what was not the engine's own code, as in an ``Outcome``.
        warm: how its worker began, as in an ``Outcome``; None of a command's.
        processor_s: processor time of its worker; None of a command's.
    """

    outcome: Outcome
    signature: str | None
    seconds: float
    detail: str = ""
    besides: tuple[str, ...] | None = None
    ran: frozenset[str] = frozenset()
    not_engine_code: tuple[str, ...] = ()
    counted: bool = False
    warm: Warm | None = None
    processor_s: float | None = None

    def in_force(self, trial: Trial) -> frozenset[str]:
        """Return the candidates of a trial that took effect, as far as that is known."""
        return trial.reverted & self.ran if self.counted else trial.reverted


def trial_seed(seed: int, number: int) -> int:
    """Return a trial's seed: 31 bits that depend on both numbers and on nothing else."""
    digest = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
