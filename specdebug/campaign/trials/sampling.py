"""Measure a failure rate: the same trial over and over, with fresh seeds, until a rule says that it is enough."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from fnmatch import fnmatchcase

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials import campaign

HOPELESS = 20  # trials after which it ends if not a single one was testable


@dataclass(frozen=True)
class Tally:
    """The counts so far.

    Attributes:
        trials: that count, whatever came of them; ``resumed`` of these were in the journal already.
        runs: trials with a verdict on the failure that is measured; ``failures`` of them showed it.
        untestable: trials that could not have shown it; ``masked`` failed in another way, and so say nothing of it.
        signatures: every one seen, with its failures, the most frequent first; ``measured``: those that count.
        first: of every signature, the first trial that had it.
    """

    trials: int = 0
    resumed: int = 0
    running: int = 0
    runs: int = 0
    failures: int = 0
    untestable: int = 0
    masked: int = 0
    signatures: tuple[tuple[str, int], ...] = ()
    measured: tuple[str, ...] = ()
    first: tuple[tuple[str, Trial], ...] = ()


@dataclass(frozen=True)
class Sampled:
    """The end of a measurement. ``reason``: "enough", "untestable", "max-trials", "interrupted", or "trouble"."""

    reason: str
    tally: Tally
    trouble: SpecDebugError | None = None


Watcher = campaign.Watcher[Tally]


@dataclass
class RateSampling:
    """One measurement; a campaign makes its trials.

    Every trial switches ``reverted`` on. ``enough`` is asked after every run, in order, if failures and runs suffice.
    With a ``pattern`` (shell wildcards) only failures that fit it are measured, else any.
    """

    enough: Callable[[int, int], bool]
    _: KW_ONLY
    reverted: frozenset[str]
    max_trials: int
    pattern: str | None = None

    def __post_init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, Trial] = {}
        self._trials = self._resumed = self._runs = self._failures = self._untestable = 0

    def pick(self, pending: Sequence[frozenset[str]]) -> frozenset[str]:
        return self.reverted

    def end(self, reason: str, trouble: SpecDebugError | None = None) -> Sampled:
        return Sampled(reason, self.standing(0), trouble)

    def take(self, trial: Trial, result: TrialResult, kept: bool) -> str | None:
        self._trials += 1
        self._resumed += kept
        name, measured = result.signature or "fail", result.outcome == "pass"
        if result.outcome == "fail":
            self._counts[name] += 1
            self._first.setdefault(name, trial)
            measured = fnmatchcase(name, self.pattern or "*")
            self._failures += measured
        self._runs += measured
        self._untestable += result.outcome == "untestable"
        if result.outcome != "untestable" and self._runs and self.enough(self._failures, self._runs):
            return "enough"
        if self._trials >= self.max_trials:
            return "max-trials"
        return "untestable" if self._trials == self._untestable >= HOPELESS else None

    def standing(self, running: int) -> Tally:
        return Tally(
            trials=self._trials,
            resumed=self._resumed,
            running=running,
            runs=self._runs,
            failures=self._failures,
            untestable=self._untestable,
            masked=self._trials - self._runs - self._untestable,
            signatures=tuple(self._counts.most_common()),
            measured=tuple(name for name, _ in self._counts.most_common() if fnmatchcase(name, self.pattern or "*")),
            first=tuple(self._first.items()),
        )
