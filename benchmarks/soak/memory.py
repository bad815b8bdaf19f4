"""Whether a process's resident memory stays flat over a soak.

What is looked at is the memory of a process at rest, again and again, over the steps it has made. The first quarter is
warm-up: allocators, caches and the interpreter take what they will keep. Over the rest a line is fitted by least
squares.

**How steep is a leak.** A step that leaves a hundred bytes behind makes 10 MB of 100,000 steps. The least thing that an
engine can forget to forget is larger: the record of one request is 2 KB, which is 40 MB in 100,000 steps at the five
decode steps that there are to a request here. So the limit is 10 MB per 100,000 steps, and a line counts as steeper
when it is so by more than two standard errors of its slope.

**How long to look.** At rest the same process stands a few tenths of a MB higher or lower than before, according to
what its engines' caches hold just then. A line that rises by less than a few MB from end to end is no evidence, however
steep it looks per 100,000 steps: a short soak cannot find a small leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy import stats

STEPS = 100_000
"""What slopes are per."""
WARM_UP = 0.25
MAX_SLOPE_MB = 10.0
NOISE_MB = 8.0
"""Rise of the line from end to end that is not called a leak."""
MAX_GROWTH_MB = 32.0
"""Most that memory may stand above the end of the warm-up, however long the soak: for what no line shows, a jump."""
MIN_SAMPLES = 8

Sample = tuple[int, float]
"""Steps made, MB resident."""


@dataclass(frozen=True)
class Trend:
    """The line through a process's memory after its warm-up. ``slope_mb`` and its standard error are per 100,000 steps,
    ``rise_mb`` is the line's from end to end, ``growth_mb`` the most that memory stood above the warm-up's end."""

    samples: int
    slope_mb: float
    error_mb: float
    rise_mb: float
    growth_mb: float

    @property
    def flat(self) -> bool:
        """Whether nothing says that memory leaks."""
        steep = self.slope_mb - 2 * self.error_mb > MAX_SLOPE_MB and self.rise_mb > NOISE_MB
        return not steep and self.growth_mb <= MAX_GROWTH_MB

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "flat": self.flat}


def trend(samples: Sequence[Sample]) -> Trend | None:
    """The trend of one process, None when it was looked at too rarely to tell."""
    if not samples:
        return None
    end = samples[-1][0]
    warm = [(steps, mb) for steps, mb in samples if steps >= WARM_UP * end]
    if len(warm) < MIN_SAMPLES:
        return None
    fit = stats.linregress([steps / STEPS for steps, _ in warm], [mb for _, mb in warm])
    first, base = warm[0]
    return Trend(
        samples=len(warm),
        slope_mb=round(float(fit.slope), 3),
        error_mb=round(float(fit.stderr), 3),
        rise_mb=round(float(fit.slope) * (end - first) / STEPS, 3),
        growth_mb=round(max(mb for _, mb in warm) - base, 3),
    )


def at_share(samples: Sequence[Sample], share: float) -> float | None:
    """MB when ``share`` of the steps were made, as last looked at by then; the first look when there was none."""
    if not samples:
        return None
    by_then = [mb for steps, mb in samples if steps <= share * samples[-1][0]]
    return by_then[-1] if by_then else samples[0][1]
