"""Fixes verified by a command: it passes with nothing reverted, and fails at least once with each of them reverted."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from specdebug.base.errors import CannotRunHere, SpecDebugError
from specdebug.base.trial import Trial, TrialResult, trial_seed
from specdebug.campaign.trials.campaign import Stopped, as_they_end, until_stopped
from specdebug.campaign.trials.command import CommandSource
from specdebug.campaign.trials.hooked import HookedSource, reachable
from specdebug.patching.toggles import Registry, Toggle

State: TypeAlias = Literal["live", "rotten", "not tried", "untested"]
Ended: TypeAlias = tuple[Trial, TrialResult]


@dataclass
class FixTried:
    """One fix, and the trials with it reverted. ``why``: it cannot be tried at all."""

    toggle: Toggle
    why: str = ""
    trials: list[Ended] = field(default_factory=list)

    @property
    def shown_by(self) -> Ended | None:
        """The first trial that failed with the fix out, as far as that is known."""
        number = str(self.toggle.pr)
        failed = (each for each in self.trials if each[1].outcome == "fail")
        return next((each for each in failed if number in each[1].in_force(each[0])), None)

    @property
    def silent(self) -> int:
        """The number of trials that ran its lines and passed all the same."""
        return sum(result.outcome == "pass" and str(self.toggle.pr) in result.ran for _, result in self.trials)

    @property
    def state(self) -> State:
        if self.shown_by:
            return "live"
        if self.silent:
            return "rotten"
        untested = bool(self.trials) and all(result.outcome == "untestable" for _, result in self.trials)
        return "untested" if untested else "not tried"

    @property
    def problem(self) -> str:
        """Why it is not live; empty where it is."""
        match self.state:
            case "live":
                return ""
            case "rotten":
                often = f"{self.silent} of {len(self.trials)} times"
                return f"its lines ran, and the command passed, {often}; --seeds makes more trials"
            case "untested":
                return f"untestable: {last_line(self.trials[0][1])}"
        counted = any(result.counted for _, result in self.trials)
        return self.why or (
            "its lines never ran" if counted else "it never failed, and nothing shows that its lines ran"
        )


@dataclass(frozen=True)
class VerifiedBy:
    """The fixes, as far as a command could tell.

    Attributes:
        applied: trials with nothing reverted; the first that does not pass is the last one begun.
        left: by number, why fixes that were not asked for by theirs do not fit what the command imports.
        reason: empty unless it was cut short; ``trouble``: the error that did so.
    """

    applied: Sequence[Ended]
    fixes: Sequence[FixTried]
    left: Mapping[str, str]
    reason: Stopped | Literal[""]
    trouble: SpecDebugError | None

    @property
    def bad(self) -> Ended | None:
        """The first trial with nothing reverted that did not pass."""
        return next((each for each in self.applied if each[1].outcome != "pass"), None)


def last_line(result: TrialResult) -> str:
    """The last line that a trial left."""
    return (result.detail.strip().splitlines() or ["it said nothing"])[-1]


def choose(
    source: CommandSource, registry: Registry, named: Sequence[Toggle]
) -> tuple[Sequence[FixTried], Mapping[str, str]]:
    """The fixes to verify: the ``named`` ones, else those of the packages that the trials with nothing reverted
    imported, else, where nothing tells, those of our own engine; and of those that do not fit, why. Raises
    CannotRunHere where there is none."""
    if not isinstance(source, HookedSource):
        return [FixTried(toggle) for toggle in named or registry.toggles.values()], {}
    fitting, left = reachable(registry, source.packages)
    if named:
        why = {toggle.pr: left.get(str(toggle.pr), "the command imports no package that it edits") for toggle in named}
        return [FixTried(toggle, "" if toggle in fitting else why[toggle.pr]) for toggle in named], {}
    if not fitting:
        why_not = "; ".join(f"{number} {why}" for number, why in left.items()) or "it imports no package that one edits"
        raise CannotRunHere(f"no fix can be verified by the command: {why_not}")
    return [FixTried(toggle) for toggle in fitting], left


def verify_by(
    source: CommandSource, registry: Registry, named: Sequence[Toggle], trials: int, told: Callable[[Ended], None]
) -> VerifiedBy:
    """Run a command so many times with nothing reverted, then up to so many with each fix reverted, until it fails."""
    applied, fixes, left = list[Ended](), list[FixTried](), dict[str, str]()
    seeds, numbers = [trial_seed(0, number) for number in range(trials)], itertools.count()

    def nothing_reverted() -> Iterator[Trial]:
        return (Trial(next(numbers), frozenset(), seed) for seed in seeds if _all_pass(applied))

    def each_reverted() -> Iterator[Trial]:
        for fix, seed in itertools.product((each for each in fixes if not each.why), seeds):
            if fix.shown_by is None:
                yield Trial(next(numbers), frozenset([str(fix.toggle.pr)]), seed)

    def whole() -> Literal[""]:
        for ended in as_they_end(source, nothing_reverted()):
            applied.append(ended)
            told(ended)
        if _all_pass(applied):
            chosen, misfits = choose(source, registry, named)
            fixes.extend(chosen)
            left.update(misfits)
        by_number = {str(fix.toggle.pr): fix for fix in fixes}
        for ended in as_they_end(source, each_reverted()):
            (number,) = ended[0].reverted
            by_number[number].trials.append(ended)
            told(ended)
        return ""

    return VerifiedBy(applied, fixes, left, *until_stopped(whole))


def _all_pass(trials: Sequence[Ended]) -> bool:
    return all(result.outcome == "pass" for _, result in trials)
