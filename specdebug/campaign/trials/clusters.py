"""Pick the failure that a search is after, where trials fail in several ways.

A search follows one signature. A failure with another is no verdict on it if it ended the run, for it may only have
come first, nor if the followed one was found after it, for that may be its consequence. Of a run that went on to its
end and found nothing of the kind it is a verdict: the failure did not show. The one to follow is the most frequent
among the first trials, which switch everything on, of those that tell of damage (``nan@sampler.logits``) if there are
any. An exception or an exit code (``error:ReadTimeout``, ``exit:1``) is followed only where nothing better is known,
and gives way to damage that shows within ``OPENING`` trials, or later if that is not rare beside it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase

from specdebug.base.trial import TrialResult
from specdebug.logs.naming import tells_of_damage

LEAD = 2
"""Failures that the leading signature needs before it is chosen; it must also be ahead of every other."""
OPENING = 16
"""Trials after which it is chosen in any case."""
SHARE = 1 / 3
"""Damage takes the place of a followed failure that is none, after the opening, if seen this often beside it."""
HOPELESS = 3
"""Untestable trials, none of them testable, after which switching everything on is given up."""


@dataclass(frozen=True)
class SeenSignature:
    """A way to fail, how often it was seen, and if it is (one of those) followed."""

    signature: str
    failures: int
    followed: bool


class Clusters:
    """Counts the ways to fail, and picks one to follow, or those that fit ``pattern`` (shell wildcards).

    Attributes:
        settled: the opening is over: no more trials are needed only to see how things fail.
        untestable: trials that came to no verdict at all.
    """

    def __init__(self, pattern: str | None = None) -> None:
        self._pattern = pattern
        self._counts: Counter[str] = Counter()
        self._trials = 0
        self._leader: str | None = None
        self.untestable = 0
        self.settled = pattern is not None

    @property
    def followed(self) -> str | None:
        """Return the signature (or pattern) that is followed, None as long as nothing has failed."""
        return self._leader if self._pattern is None else self._pattern

    @property
    def chosen(self) -> str:
        """Return how the followed signature was chosen, in words that fit behind it."""
        if self._pattern is not None:
            return "as --signature or the scenario states"
        if self._leader is None:
            return ""
        kind = " that tell of damage" if tells_of_damage(self._leader) else ", none of which tells of damage"
        return f"the most frequent of the first trials' failures{kind}"

    @property
    def seen(self) -> tuple[SeenSignature, ...]:
        """Return every signature, the most frequent first."""
        return tuple(SeenSignature(name, count, self.matches(name)) for name, count in self._counts.most_common())

    def matches(self, signature: str) -> bool:
        """Return True if a failure is of the kind that is followed."""
        if self._pattern is not None:
            return fnmatchcase(signature, self._pattern)
        return signature == self._leader

    def add(self, result: TrialResult) -> None:
        self._trials += 1
        self.untestable += result.outcome == "untestable"
        if result.signature is not None:
            self._counts[result.signature] += 1
        if self._pattern is None and (not self.settled or self._leader is None or self._may_give_way()):
            self._lead()

    def _may_give_way(self) -> bool:
        """Return True if the followed failure tells of no damage, and another does that is no stray."""
        if self._leader is None or tells_of_damage(self._leader):
            return False
        damage = max((count for name, count in self._counts.items() if tells_of_damage(name)), default=0)
        return damage > 0 and (self._trials <= OPENING or damage >= max(LEAD, SHARE * self._counts[self._leader]))

    def _lead(self) -> None:
        telling = [(name, count) for name, count in self._counts.most_common() if tells_of_damage(name)]
        ranked = telling or self._counts.most_common(2)  # of equals the one seen first
        self._leader = ranked[0][0] if ranked else None
        ahead = ranked[0][1] - (ranked[1][1] if len(ranked) > 1 else 0) if ranked else 0
        self.settled = (
            self.settled
            or (ahead > 0 and ranked[0][1] >= LEAD)
            or self._trials >= OPENING
            or self._trials == self.untestable >= HOPELESS
        )

    def verdict(self, result: TrialResult) -> bool | None:
        """Return what a result says of the followed failure; None for nothing."""
        if result.outcome == "pass":
            return False
        if result.signature is None:
            return None
        if self.matches(result.signature):
            return True
        went_on = result.besides is not None and not any(map(self.matches, result.besides))
        return False if went_on else None
