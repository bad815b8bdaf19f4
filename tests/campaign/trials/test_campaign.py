"""What is chosen for a trial, and what counts when, is a function of results: not of time, kills or resuming."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult, trial_seed
from specdebug.campaign.trials.campaign import Campaign
from tests.campaign.trials.searches import PASSED, Kept, Source, failed

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


def test_what_the_journal_holds_is_not_run_again() -> None:
    journal = Kept()
    stopped = Drive(Source(at_random, 2, order=1, stop_after=5), journal)
    assert (stopped.ended, stopped.moves) == ("interrupted", 6)
    source = Source(at_random, 2, order=1)
    resumed = Drive(source, journal)
    assert len(source.started) == TRIALS - 5
    assert resumed.kept == 5


def chosen_anew(source: Source, journal: Kept, wave: int = 3) -> list[tuple[Trial, TrialResult]]:
    """Trials in waves: the first of one is chosen once all of the wave before count. Seeds are ours."""
    campaign, counted = Campaign(source, journal, 5, TRIALS), list[tuple[Trial, TrialResult]]()

    def choose(number: int, pending: Sequence[Trial]) -> Trial | None:
        assert number == len(counted) + len(pending)
        if pending and number % wave == 0:
            return None
        return Trial(number, frozenset({f"of wave {number // wave}"}), 100 + number)

    def whole() -> str:
        while (pair := campaign.next(choose)) is not None:
            counted.append(pair[:2])
        return "whole"

    assert campaign.run(whole) == ("whole", None)
    return counted


def test_who_chooses_may_wait_until_others_count_and_gives_the_seeds() -> None:
    counted = chosen_anew(Source(at_random, 4, order=3), Kept())
    assert [trial.number for trial, _ in counted] == list(range(TRIALS))
    assert [trial.seed for trial, _ in counted] == list(range(100, 100 + TRIALS))
    assert counted == chosen_anew(Source(at_random, 1, order=0), Kept())


def test_the_journal_s_trial_takes_the_place_of_the_one_that_is_chosen() -> None:
    journal = Kept()
    other = Trial(1, frozenset({"something else"}), 7)
    journal.record(other, TrialResult("pass", None, 0.1))
    source = Source(at_random, 2, order=1)
    assert chosen_anew(source, journal)[1][0] == other
    assert len(source.started) == TRIALS - 1


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
