"""Make a failing thing smaller while it keeps failing in the same way, by trials that fail only some of the time.

The method is that of probabilistic delta debugging (Wang et al., ESEC/FSE 2021), carried over to flaky trials: a trial
shifts probabilities by its likelihood ratio. The search is a function of what its trials show, in the order of their
numbers: with these kept, it goes on where it was stopped."""

import fnmatch
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Generic, Literal, Protocol, TypeVar

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.search.subset import Probe, SubsetSearch, TrialRates
from specdebug.search.sure import SureSearch

C_co = TypeVar("C_co", covariant=True)
R = TypeVar("R", bound=str)

Stopped = Literal["interrupted", "trouble"]


@dataclass(frozen=True)
class Stage(Generic[C_co]):
    """Elements that can be taken away in any combination (dropped, or made smaller), by names that no other stage has.
    ``without``: what is left without some of them, None where that cannot be. ``kinds``: of elements of one kind it is
    likely that all are needed if one is; without them, nothing is known of that."""

    title: str
    labels: Sequence[str]
    without: Callable[[frozenset[int]], C_co | None]
    kinds: Sequence[str] = ()


class Space(Protocol[C_co]):
    """A thing (``start``) and what can be taken away from it, stage after stage."""

    @property
    def start(self) -> C_co: ...

    def next_stage(self) -> Stage[C_co] | None:
        """Return what to try to take away next, given what ``took`` has reported; None when there is nothing more."""

    def took(self, removed: frozenset[int], confirmed: frozenset[int]) -> None:
        """Take in the end of the latest stage: what is gone, and what is kept because the failure needs it."""


class Trials(Protocol):
    """Makes trials, several at a time, and keeps them, as ``campaign.trials.campaign.Campaign`` does."""

    def run(self, whole: Callable[[], R]) -> tuple[R | Stopped, SpecDebugError | None]: ...

    def next(
        self, choose: Callable[[int, Sequence[Trial]], Trial | None]
    ) -> tuple[Trial, TrialResult, bool] | None: ...


C = TypeVar("C")

Reason = Literal["done", "max-trials", "silent", "interrupted", "trouble"]

OPENING_FAILURES = 5  # the whole is tried until one signature was seen so often
OPENING_TRIALS = 80  # or so many times
CLOSING_TRIALS = (
    12,
    5,
)  # so often the smallest is tried at the end, with fresh seeds; the second: of what always failed
FRESH_FAILURES = (
    4,
    2,
)  # so often must what a stage ends with have failed with fresh seeds: the first stage, the others
_LEAST_RATE = 0.6
_KNOWN_TO_START = 0.6
_SURE_TO_START = 0.98
_FALSE_TO_START = 0.012


@dataclass(frozen=True)
class StageResult:
    """A stage that is over, or as far as it came, by the labels of its elements.

    ``unconfirmed`` are those of ``kept`` that were not (yet) found to be needed; ``trials`` is how many it took.
    ``left``: failures of what is left, and its trials, with fresh seeds; ``rarer``: a lower share than of the whole.
    """

    title: str
    removed: tuple[str, ...]
    kept: tuple[str, ...]
    unconfirmed: tuple[str, ...]
    trials: int
    left: tuple[int, int] = (0, 0)
    rarer: bool = False


def rarer(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return True if one has failures in a lower share of its trials than another; False without trials."""
    return one[0] * other[1] < other[0] * one[1]


@dataclass(frozen=True)
class Summary(Generic[C]):
    """The result of a search.

    Attributes:
        reason: why it ended: ``silent`` when the whole did not fail (as asked); ``trouble``: what stopped it.
        followed: the signature (or pattern) of the failure; ``others`` came up, too, so often.
        whole: failures as followed, and trials, of the whole; ``left`` the same of the smallest, with fresh seeds.
        seeds: that fail with the smallest, those that did so last in front.
    """

    reason: Reason
    smallest: C
    followed: str | None
    others: tuple[tuple[str, int], ...]
    whole: tuple[int, int]
    left: tuple[int, int]
    seeds: tuple[int, ...]
    steps: tuple[StageResult, ...]
    trials: int
    resumed: int
    trouble: SpecDebugError | None = None


class MinimiseWatcher:
    """Is told of every trial of the whole, of a stage and of the smallest, and of every stage's end; does nothing."""

    def opening(self, seen: TrialResult, failures: int, trials: int) -> None: ...

    def tried(
        self, title: str, gone: int, size: int, seen: TrialResult, failed: bool, removed: int, trials: int
    ) -> None:
        """Take in a trial without ``gone`` of ``size`` elements, after which ``removed`` are held to be superfluous."""

    def ended(self, step: StageResult) -> None: ...

    def closing(self, seen: TrialResult, failures: int, trials: int) -> None: ...


@dataclass
class Minimiser(Generic[C]):
    """One search.

    ``leave`` is told what is left of the thing in the trial of a number, before that is made. A trial's ``reverted``
    names all that was taken away from the whole. ``seeds`` gives a seed that no other trial has, by the trial's number.
    Every kept element is confirmed needed at the probability ``confidence``. Signatures that fit ``pattern`` (shell
    wildcards) are followed, instead of the most frequent one.
    """

    space: Space[C]
    trials: Trials
    leave: Callable[[int, C], None]
    _: KW_ONLY
    seeds: Callable[[int], int]
    max_trials: int
    confidence: float = 0.95
    pattern: str | None = None

    def __post_init__(self) -> None:
        self._followed: str | None = self.pattern
        self._smallest = self.space.start
        self._signatures: Counter[str] = Counter()
        self._opening: list[tuple[int, TrialResult]] = []
        self._whole = self._left = (0, 0)
        self._failing: list[int] = []
        self._gone = frozenset[str]()
        self._number = self._counted = self._resumed = self._stage_began = 0
        self._under_way: tuple[Stage[C], SubsetSearch] | None = None
        self._steps: list[StageResult] = []

    def run(self, watcher: MinimiseWatcher) -> Summary[C]:
        """Search to the end, or as far as it goes; whatever stops it, the summary says what is known."""
        reason, trouble = self.trials.run(lambda: self._run(watcher))
        if self._under_way is not None:
            self._end_stage(*self._under_way)
        return Summary(
            reason,
            self._smallest,
            self._followed,
            tuple(item for item in self._signatures.most_common() if not self._is_followed(item[0])),
            self._whole,
            self._left,
            tuple(self._failing),
            tuple(self._steps),
            self._counted,
            self._resumed,
            trouble,
        )

    def _run(self, watcher: MinimiseWatcher) -> Reason:
        while self._opening_failures() < OPENING_FAILURES and len(self._opening) < OPENING_TRIALS:
            pair = self._next(lambda number, _: (Trial(number, frozenset(), self.seeds(number)), self.space.start))
            if pair is None:  # there may be no more trials
                break
            trial, seen = pair
            self._opening.append((trial.seed, seen))
            watcher.opening(seen, self._opening_failures(), len(self._opening))
        if not self._open():
            return "silent"
        while (stage := self.space.next_stage()) is not None:
            if self._counted >= self.max_trials:
                return "max-trials"
            search = self._begin_stage(stage)
            while (pair := self._next(partial(self._probe, stage, search))) is not None:
                self._observe(stage, search, *pair, watcher)
                if self._counted >= self.max_trials:
                    return "max-trials"
            watcher.ended(self._end_stage(stage, search))
        while self._left[1] < self._closing:
            pair = self._next(self._smallest_again)
            if pair is None:
                return "max-trials"
            trial, seen = pair
            if self._is_closing(trial):
                failed = self._is_followed(seen.signature)
                self._left = self._left[0] + failed, self._left[1] + 1
                if failed:
                    self._failing.append(trial.seed)
                watcher.closing(seen, *self._left)
        return "done"

    def _opening_failures(self) -> int:
        counts = Counter(seen.signature for _, seen in self._opening if self._may_follow(seen.signature))
        return sum(counts.values()) if self.pattern else max(counts.values(), default=0)

    def _may_follow(self, signature: str | None) -> bool:
        return signature is not None and (self.pattern is None or fnmatch.fnmatchcase(signature, self.pattern))

    def _open(self) -> bool:
        """Settle what is followed, and its rate. Return False when nothing was seen that could be."""
        failures, trials = self._opening_failures(), len(self._opening)
        self._whole = failures, trials
        if not failures:
            return False
        if self.pattern is None:
            self._followed = Counter(seen.signature for _, seen in self._opening if seen.signature).most_common(1)[0][0]
        self._failing = [seed for seed, seen in self._opening if self._is_followed(seen.signature)]
        # Stopping at a failure makes the plain ratio too high; this one is unbiased.
        rate = (failures - 1) / (trials - 1) if failures > 1 else 1 / trials
        self._whole_rate = min(max(rate, 0.01), 0.9)
        sure = failures == trials
        known = _SURE_TO_START if sure else _KNOWN_TO_START
        self._rates = TrialRates(self._whole_rate, known, _FALSE_TO_START, sure)
        return True

    def _is_followed(self, signature: str | None) -> bool:
        return signature == self._followed is not None if self.pattern is None else self._may_follow(signature)

    def _smallest_again(self, number: int, pending: Sequence[Trial]) -> tuple[Trial, C] | None:
        if self._left[1] + sum(map(self._is_closing, pending)) >= self._closing:
            return None
        return Trial(number, self._gone, self.seeds(number)), self._smallest

    @property
    def _closing(self) -> int:
        """How many trials of the smallest there are to be at the end."""
        return CLOSING_TRIALS[self._rates.sure]

    def _is_closing(self, trial: Trial) -> bool:
        return trial.reverted == self._gone and not self._is_known(trial)

    def _begin_stage(self, stage: Stage[C]) -> SubsetSearch:
        before = self._steps[-1] if self._steps else None
        kind: Callable[..., SubsetSearch] = SubsetSearch
        if self._rates.sure:  # what went well goes on well
            together = before is None or len(before.removed) > len(before.kept)
            kind = partial(SureSearch, together=together, kinds=stage.kinds, doubts=before is None)
        search = kind(
            len(stage.labels),
            self._rates,
            lambda: self.seeds(self._number),
            self._failing,
            lambda removed: stage.without(removed) is not None,
            self.confidence,
            failures=FRESH_FAILURES[bool(self._steps)],
        )
        self._under_way, self._stage_began = (stage, search), self._counted
        return search

    def _probe(
        self, stage: Stage[C], search: SubsetSearch, number: int, pending: Sequence[Trial]
    ) -> tuple[Trial, C] | None:
        self._number = number
        probes = [probe for trial in pending if (probe := self._probe_of(stage, trial)) is not None]
        probe = search.next_probe(probes)
        if probe is None:
            return None
        candidate = stage.without(probe.removed)
        assert candidate is not None, "the search asked whether this can be"
        return Trial(number, self._gone_with(stage, probe.removed), probe.seed), candidate

    def _gone_with(self, stage: Stage[C], removed: frozenset[int]) -> frozenset[str]:
        """Return the names of all that is gone once these are; no other stage has an element of the same name."""
        return self._gone.union(f"{stage.title}: {stage.labels[element]}" for element in removed)

    def _probe_of(self, stage: Stage[C], trial: Trial) -> Probe | None:
        """Return what a trial says of this stage; None if it was not of something in it."""
        removed = frozenset(at for at, label in enumerate(stage.labels) if f"{stage.title}: {label}" in trial.reverted)
        if not removed or trial.reverted != self._gone_with(stage, removed):
            return None
        return Probe(removed, trial.seed, self._is_known(trial))

    def _is_known(self, trial: Trial) -> bool:
        return trial.seed != self.seeds(trial.number)

    def _observe(
        self, stage: Stage[C], search: SubsetSearch, trial: Trial, seen: TrialResult, watcher: MinimiseWatcher
    ) -> None:
        probe = self._probe_of(stage, trial)
        if probe is None:  # such as one of the opening, which had seen enough by then
            return
        failed = self._is_followed(seen.signature)
        search.observe(probe, failed)
        gone, size = len(probe.removed), len(stage.labels)
        watcher.tried(stage.title, gone, size, seen, failed, len(search.removed), self._counted)

    def _end_stage(self, stage: Stage[C], search: SubsetSearch) -> StageResult:
        removed, labels = search.removed, stage.labels
        kept = [element for element in range(len(labels)) if element not in removed]
        confirmed = frozenset(element for element in kept if search.confirmed(element))
        smallest = stage.without(removed)
        if smallest is not None:
            self._smallest = smallest
        if removed:
            self._failing = search.failing_seeds()
        # However many stages there are, the failure is not to become much rarer.
        self._rates = replace(search.rates, fresh=max(search.rates.fresh, _LEAST_RATE * self._whole_rate))
        self.space.took(removed, confirmed)
        self._gone = self._gone_with(stage, removed)
        left = search.fresh(removed) if removed else (0, 0)
        step = StageResult(
            stage.title,
            tuple(labels[element] for element in sorted(removed)),
            tuple(labels[element] for element in kept),
            tuple(labels[element] for element in kept if element not in confirmed),
            self._counted - self._stage_began,
            left,
            rarer(left, self._whole),
        )
        self._steps.append(step)
        self._under_way = None
        return step

    def _next(
        self, choose: Callable[[int, Sequence[Trial]], tuple[Trial, C] | None]
    ) -> tuple[Trial, TrialResult] | None:
        """Return the next trial that counts; None when nothing is left to try, or there may be no more trials."""

        def chosen(number: int, pending: Sequence[Trial]) -> Trial | None:
            pair = choose(number, pending)
            if pair is not None:
                self.leave(number, pair[1])
            return None if pair is None else pair[0]

        counted = self.trials.next(chosen)
        if counted is None:
            return None
        trial, seen, kept = counted
        self._counted += 1
        self._resumed += kept
        if seen.signature is not None:
            self._signatures[seen.signature] += 1
        return trial, seen
