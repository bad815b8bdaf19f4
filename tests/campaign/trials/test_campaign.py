"""What is chosen for a trial, and what counts when, is a function of results: not of time, kills or resuming."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult, trial_seed
from specdebug.campaign.trials.campaign import Campaign
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.sampling import RateSampling, Sampled
from tests.campaign.trials.searches import PASSED, UNTESTABLE, Kept, Notes, Source, failed

TRIALS = 12


def at_random(trial: Trial) -> TrialResult:
    return failed() if random.Random(trial.seed).random() < 0.5 else PASSED


class Drive:
    """Counts :data:`TRIALS` trials. What one switches on says which counted when it was chosen, and which did not."""

    def __init__(self, source: Source, journal: Kept) -> None:
        self.counted: list[tuple[Trial, TrialResult]] = []
        self.kept = 0
        self.moves = 0
        self.campaign = Campaign(source, journal, 5, TRIALS)
        self.ended, self.trouble = self.campaign.run(self._whole)

    def _whole(self) -> str:
        while len(self.counted) < TRIALS:
            counted = self.campaign.next(self._choose, self._moved)
            assert counted is not None
            self.counted.append(counted[:2])
            self.kept += counted[2]
        return "whole"

    def _choose(self, number: int, pending: Sequence[Trial]) -> Trial:
        failures = sum(result.outcome == "fail" for _, result in self.counted)
        switched = frozenset({f"{failures} of {len(self.counted)} failed", f"{len(pending)} pending"})
        return Trial(number, switched, trial_seed(5, number))

    def _moved(self) -> None:
        self.moves += 1


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, TRIALS), st.integers()), max_size=3), st.integers())
def test_however_it_is_timed_and_stopped_the_same_trials_count(
    capacity: int, stops: list[tuple[int, int]], order: int
) -> None:
    expected = Drive(Source(at_random, capacity, order=0), Kept()).counted
    sources = [*(Source(at_random, capacity, one, ends) for ends, one in stops), Source(at_random, capacity, order)]
    journal = Kept()
    last = [Drive(source, journal) for source in sources][-1]
    assert last.ended == "whole"
    assert last.counted == expected
    assert all(source.closed for source in sources)
    assert [trial.seed for trial, _ in expected] == [trial_seed(5, number) for number in range(TRIALS)]
    for number, (trial, _) in enumerate(expected):
        assert any(one.endswith(f"of {max(0, number - 2 * capacity + 2)} failed") for one in trial.reverted)


def test_an_error_is_told_and_whatever_else_passes_through() -> None:
    trouble = SpecDebugError("no more")
    assert (drive := Drive(Source(at_random, 1, order=0, stop_after=3, error=trouble), Kept())).ended == "trouble"
    assert (drive.trouble, len(drive.counted)) == (trouble, 3)
    source = Source(at_random, 1, order=0, stop_after=3, error=ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        Drive(source, Kept())
    assert source.closed


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), OSError(28, "No space left on device"), MemoryError()]
)
def test_a_machine_that_fails_stops_it_without_a_verdict_and_loses_nothing(error: Exception) -> None:
    journal = Kept()
    drive = Drive(source := Source(at_random, 1, order=0, stop_after=3, error=error), journal)
    assert drive.ended == "trouble"
    assert drive.trouble is not None
    assert (drive.trouble.exit_code, len(journal.trials), source.closed) == (125, 3, True)
    assert str(drive.trouble).startswith("machine: ")
    assert Drive(Source(at_random, 1, order=0), journal).ended == "whole"


def scripted(results: Sequence[TrialResult | BaseException], capacity: int = 1) -> Source:
    """Trials whose results are known; those under way end last in, first out."""
    return Source(lambda trial: results[trial.number % len(results)], capacity, order=None)


def never(failures: int, runs: int) -> bool:
    return False


def sample(
    source: Source,
    path: Path,
    enough: Callable[[int, int], bool] = never,
    *,
    max_trials: int = 100,
    pattern: str | None = None,
    notes: Notes | None = None,
) -> Sampled:
    sampling = RateSampling(enough, reverted=frozenset({"7"}), max_trials=max_trials, pattern=pattern)
    with Journal(path, source.identity, "a test") as journal:
        return Campaign(source, journal, 3, max_trials).search(sampling, notes or Notes())


def test_it_stops_when_the_rule_says_so(tmp_path: Path) -> None:
    source = scripted([PASSED, failed("a"), PASSED, failed("b"), failed("a")])
    sampled = sample(source, tmp_path / "j", lambda failures, runs: failures == 6)
    assert (sampled.reason, sampled.tally.runs, sampled.tally.failures) == ("enough", 10, 6)
    assert sampled.tally.signatures == (("a", 4), ("b", 2))
    assert [trial.number for _, trial in sampled.tally.first] == [1, 3]
    assert source.closed
    assert all(t.reverted == {"7"} and t.seed == trial_seed(3, t.number) for t in source.started)


def test_only_verdicts_on_what_is_measured_count(tmp_path: Path) -> None:
    source = scripted([failed("nan@x"), failed("hang"), UNTESTABLE, PASSED])
    tally = sample(source, tmp_path / "j", pattern="nan@*", max_trials=8).tally
    assert (tally.trials, tally.runs, tally.failures) == (8, 4, 2)
    assert (tally.masked, tally.untestable) == (2, 2)
    assert dict(tally.signatures) == {"nan@x": 2, "hang": 2}
    assert tally.measured == ("nan@x",)


def test_an_interrupt_keeps_what_was_measured_and_the_next_goes_on(tmp_path: Path) -> None:
    stopped = sample(scripted([PASSED, failed("a"), PASSED, KeyboardInterrupt()]), tmp_path / "j", max_trials=8)
    assert (stopped.reason, stopped.tally.trials, stopped.tally.running) == ("interrupted", 3, 0)
    source = scripted([PASSED, failed("a")])
    whole = sample(source, tmp_path / "j", max_trials=8)
    assert [trial.number for trial in source.started] == [3, 4, 5, 6, 7]
    assert (whole.reason, whole.tally.trials, whole.tally.resumed, whole.tally.failures) == ("max-trials", 8, 3, 4)
    again = scripted([PASSED])
    assert sample(again, tmp_path / "j", max_trials=8).tally.failures == 4
    assert again.started == []
