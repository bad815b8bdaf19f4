"""The whole search: stages, resuming, and every way to end."""

import pytest

from specdebug.errors import SpecDebugError
from specdebug.minimise import Minimiser
from specdebug.minimise.minimiser import CLOSING_TRIALS, OPENING_TRIALS
from tests.chance import fewest, most

from .simulated import Memory, Oracle, Space, Watcher

STATED = 0.05
"""Searches that end with something else, at most, where each element is confirmed at 95%."""


def minimise(oracle, memory=None, size=12, max_trials=1000, pattern=None, watcher=None, space=None, seed=1000):
    search = Minimiser(
        space or Space(size),
        oracle,
        seeds=lambda number: seed + number,
        memory=memory or Memory(),
        max_trials=max_trials,
        pattern=pattern,
    )
    return search.run(watcher or Watcher())


def test_what_is_needed_is_left_and_confirmed():
    watcher = Watcher()
    summary = minimise(Oracle({2, 9}), watcher=watcher)
    assert (summary.reason, summary.smallest, summary.followed) == ("done", {2, 9}, "nan@x")
    assert [step.title for step in summary.steps] == ["first", "second"]
    assert summary.steps[0].kept == ("first-2", "first-9")
    assert not any(step.unconfirmed for step in summary.steps)
    assert summary.left == (CLOSING_TRIALS, CLOSING_TRIALS)
    assert summary.seeds
    assert watcher.told.count("ended") == 2
    assert len(watcher.told) == summary.trials + 2


def test_a_flake_with_another_signature_beside_it_keeps_its_own():
    found = [minimise(Oracle({2, 9}, rate=0.5, other=0.1), seed=1000 * case) for case in range(8)]
    ours = [summary for summary in found if summary.followed == "nan@x"]
    assert len(ours) >= fewest(8, 0.9)  # what is five times as frequent was seen five times first
    assert sum(summary.smallest != {2, 9} for summary in ours) <= most(8, STATED)
    assert {name for summary in ours for name, _ in summary.others} == {"oob@y"}


def test_a_pattern_decides_what_is_followed():
    found = [minimise(Oracle({2, 9}, rate=0.8, other=0.9), pattern="nan@*", seed=1000 * case) for case in range(8)]
    assert {summary.followed for summary in found} == {"nan@*"}
    assert sum(summary.smallest != {2, 9} for summary in found) <= most(8, STATED)


def test_every_seed_named_was_seen_to_fail_in_the_end():
    oracle = Oracle({1}, rate=0.5)
    summary = minimise(oracle)
    again = Oracle({1}, rate=0.5)
    again.start(0, summary.smallest, summary.seeds[0])
    assert again.wait()[1].signature == "nan@x"


@pytest.mark.parametrize("capacity", [1, 2, 3])
@pytest.mark.parametrize("stop_after", [0, 3, 17, 40])
def test_a_search_that_was_stopped_goes_on_and_repeats_nothing(capacity, stop_after):
    whole = minimise(Oracle({2, 9}, rate=0.6, capacity=capacity))
    memory = Memory()
    first = Oracle({2, 9}, rate=0.6, capacity=capacity, stop_after=stop_after)
    cut = minimise(first, memory)
    assert cut.reason == "interrupted"
    kept = len(memory.kept)
    second = Oracle({2, 9}, rate=0.6, capacity=capacity)
    resumed = minimise(second, memory)
    assert (resumed.smallest, resumed.steps, resumed.trials) == (whole.smallest, whole.steps, whole.trials)
    assert resumed.resumed == kept
    assert len(second.started) + kept == len(memory.kept)


def test_nothing_is_searched_where_nothing_fails():
    summary = minimise(Oracle({2}, rate=0.0))
    assert (summary.reason, summary.trials, summary.seeds) == ("silent", OPENING_TRIALS, ())
    assert summary.smallest == frozenset(range(12))


@pytest.mark.parametrize("max_trials", [1, 5, 7, 20, 35])
def test_what_there_is_is_told_when_trials_run_out(max_trials):
    oracle = Oracle({2, 9}, rate=0.7)
    summary = minimise(oracle, max_trials=max_trials)
    assert summary.trials == len(oracle.started) <= max_trials
    assert summary.reason in ("max-trials", "silent")
    assert summary.smallest >= {2, 9}


def test_what_stops_the_oracle_is_told_with_what_was_found():
    class Broken(Oracle):
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
    summary = minimise(Oracle({2}), space=Space(6, impossible=(frozenset({0, 1}),)))
    assert summary.smallest == {2}
