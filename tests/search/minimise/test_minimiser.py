"""The whole search: stages, resuming, and every way to end."""

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import trial_seed
from specdebug.campaign.trials.campaign import Campaign
from specdebug.search.minimise import CLOSING_TRIALS, OPENING_TRIALS, Minimiser
from tests.campaign.trials.searches import Kept
from tests.chance import fewest, most

from .simulated import Source, Space, Watcher

STATED = 0.05
"""Searches that end with something else, at most, where each element is confirmed at 95%."""


def minimise(source, journal=None, size=12, max_trials=1000, pattern=None, watcher=None, space=None, seed=1000):
    search = Minimiser(
        space or Space(size),
        Campaign(source, journal or Kept(), seed, max_trials),
        source.leave,
        seeds=lambda number: trial_seed(seed, number),
        max_trials=max_trials,
        pattern=pattern,
    )
    return search.run(watcher or Watcher())


def test_what_is_needed_is_left_and_confirmed():
    watcher = Watcher()
    summary = minimise(Source({2, 9}), watcher=watcher)
    assert (summary.reason, summary.smallest, summary.followed) == ("done", {2, 9}, "nan@x")
    assert [step.title for step in summary.steps] == ["first", "second"]
    assert summary.steps[0].kept == ("first-2", "first-9")
    assert not any(step.unconfirmed for step in summary.steps)
    assert summary.left == (CLOSING_TRIALS, CLOSING_TRIALS)
    assert summary.seeds
    assert watcher.told.count("ended") == 2
    assert len(watcher.told) == summary.trials + 2


def test_a_flake_with_another_signature_beside_it_keeps_its_own():
    found = [minimise(Source({2, 9}, rate=0.5, other=0.1), seed=1000 * case) for case in range(8)]
    ours = [summary for summary in found if summary.followed == "nan@x"]
    assert len(ours) >= fewest(8, 0.9)  # what is five times as frequent was seen five times first
    assert sum(summary.smallest != {2, 9} for summary in ours) <= most(8, STATED)
    assert {name for summary in ours for name, _ in summary.others} == {"oob@y"}


def test_a_pattern_decides_what_is_followed():
    found = [minimise(Source({2, 9}, rate=0.8, other=0.9), pattern="nan@*", seed=1000 * case) for case in range(8)]
    assert {summary.followed for summary in found} == {"nan@*"}
    assert sum(summary.smallest != {2, 9} for summary in found) <= most(8, STATED)


def test_every_seed_named_was_seen_to_fail_in_the_end():
    source = Source({1}, rate=0.5)
    summary = minimise(source)
    assert source.signature(summary.smallest, summary.seeds[0]) == "nan@x"


@pytest.mark.parametrize("capacity", [1, 2, 3])
@pytest.mark.parametrize("stop_after", [0, 3, 17, 40])
def test_a_search_that_was_stopped_goes_on_and_repeats_nothing(capacity, stop_after):
    whole = minimise(Source({2, 9}, rate=0.6, capacity=capacity))
    journal = Kept()
    first = Source({2, 9}, rate=0.6, capacity=capacity, stop_after=stop_after)
    cut = minimise(first, journal)
    assert cut.reason == "interrupted"
    kept = len(journal.trials)
    second = Source({2, 9}, rate=0.6, capacity=capacity)
    resumed = minimise(second, journal)
    assert (resumed.smallest, resumed.steps, resumed.trials) == (whole.smallest, whole.steps, whole.trials)
    assert resumed.resumed == kept
    assert len(second.started) + kept == len(journal.trials)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (4, 2)])
@pytest.mark.parametrize("stop_after", [7, 30, 55])
def test_a_search_goes_on_with_another_number_of_trials_at_a_time(before, after, stop_after):
    """It may have chosen other trials by then; those that were made say what they say all the same."""
    journal = Kept()
    minimise(Source({2, 9}, rate=0.8, capacity=before, stop_after=stop_after), journal)
    kept = set(journal.trials)
    second = Source({2, 9}, rate=0.8, capacity=after)
    summary = minimise(second, journal)
    assert (summary.reason, summary.smallest) == ("done", {2, 9})
    assert kept.isdisjoint(trial.number for trial in second.started)
    assert summary.resumed == len(kept)


def test_a_trial_says_all_that_is_gone():
    """So that one made after another stage has ended otherwise is not taken for what it is not."""
    source = Source({2, 9})
    minimise(source)
    last = source.started[-1]
    assert last.reverted == {f"first: first-{part}" for part in range(12) if part not in (2, 9)}


def test_nothing_is_searched_where_nothing_fails():
    summary = minimise(Source({2}, rate=0.0))
    assert (summary.reason, summary.trials, summary.seeds) == ("silent", OPENING_TRIALS, ())
    assert summary.smallest == frozenset(range(12))


@pytest.mark.parametrize("max_trials", [1, 5, 7, 20, 35])
def test_what_there_is_is_told_when_trials_run_out(max_trials):
    source = Source({2, 9}, rate=0.7)
    summary = minimise(source, max_trials=max_trials)
    assert summary.trials == len(source.started) <= max_trials
    assert summary.reason in ("max-trials", "silent")
    assert summary.smallest >= {2, 9}


def test_what_stops_the_source_is_told_with_what_was_found():
    class Broken(Source):
        def wait(self):
            if len(self.started) > 30:
                raise SpecDebugError("the machine is gone")
            return super().wait()

    summary = minimise(Broken({2, 9}, rate=0.7))
    assert summary.reason == "trouble"
    assert str(summary.trouble) == "the machine is gone"
    assert summary.smallest >= {2, 9}
    assert summary.trials == 30


def test_what_cannot_go_together_is_left_to_the_next_stage():
    summary = minimise(Source({2}), space=Space(6, impossible=(frozenset({0, 1}),)))
    assert summary.smallest == {2}
