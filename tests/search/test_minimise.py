"""The whole search: stages, resuming, and every way to end."""

import random

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import TrialResult, trial_seed
from specdebug.campaign.trials.campaign import Campaign
from specdebug.search.minimise import CLOSING_TRIALS, OPENING_TRIALS, Minimiser, MinimiseWatcher
from tests.campaign.trials import searches
from tests.campaign.trials.searches import Kept
from tests.chance import most

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
    assert summary.left == (CLOSING_TRIALS[1], CLOSING_TRIALS[1])
    assert summary.seeds
    assert watcher.told.count("ended") == 2
    assert len(watcher.told) == summary.trials + 2


def test_a_failure_in_every_trial_takes_tens_of_trials():
    needs = [{2, 9}, {0}, {3, 4, 11}]
    found = [minimise(Source(each), seed=1000 * case) for case in range(4) for each in needs]
    assert [summary.smallest for summary in found] == needs * 4
    assert max(summary.trials for summary in found) <= 80


def test_a_pattern_decides_what_is_followed():
    found = [minimise(Source({2, 9}, rate=0.8, other=0.9), pattern="nan@*", seed=1000 * case) for case in range(8)]
    assert {summary.followed for summary in found} == {"nan@*"}
    assert sum(summary.smallest != {2, 9} for summary in found) <= most(8, STATED)


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


class Stage:
    """Elements numbered from 0, some sets of which cannot go together."""

    kinds = ()

    def __init__(self, whole, title="parts", impossible=()):
        self.whole, self.title, self.impossible = frozenset(whole), title, impossible
        self.order = sorted(self.whole)
        self.labels = [f"{title}-{one}" for one in self.order]

    def without(self, removed):
        if any(pair <= removed for pair in self.impossible) or len(removed) == len(self.order):
            return None
        return self.whole - {self.order[index] for index in removed}


class Space:
    """Two stages: the even elements' turn, then all that are left."""

    def __init__(self, size, impossible=()):
        self.start = frozenset(range(size))
        self._left, self._stages, self._stage = self.start, ["first", "second"], None
        self._impossible = impossible

    def next_stage(self):
        if not self._stages:
            return None
        title = self._stages.pop(0)
        self._stage = Stage(self._left, title, self._impossible if title == "first" else ())
        return self._stage

    def took(self, removed, confirmed):
        self._left = self._stage.without(removed)


class Source(searches.Source):
    """Fails with ``nan@x`` at ``rate`` when ``needed`` is there, with ``oob@y`` at ``other`` when anything is; the last
    trial that was started ends first."""

    def __init__(self, needed, rate=1.0, other=0.0, false=0.0, capacity=1, stop_after=10**9):
        super().__init__(self.result, capacity, order=None, stop_after=stop_after)
        self.needed, self.rate, self.other, self.false = frozenset(needed), rate, other, false
        self._left = {}

    def leave(self, number, left):
        self._left[number] = left

    def result(self, trial):
        signature = self.signature(self._left.pop(trial.number), trial.seed)
        return TrialResult("pass" if signature is None else "fail", signature, 0.0)

    def signature(self, left, seed):
        draw = random.Random(f"{seed}:{sorted(left)}")
        signature = "oob@y" if draw.random() < self.other else None
        if draw.random() < (self.rate if self.needed <= left else self.false):
            signature = "nan@x"
        return signature


class Watcher(MinimiseWatcher):
    """Counts what it is told."""

    def __init__(self):
        self.told = []

    def opening(self, *said):
        self.told.append("opening")

    def tried(self, *said):
        self.told.append("tried")

    def ended(self, step):
        self.told.append("ended")

    def closing(self, *said):
        self.told.append("closing")
