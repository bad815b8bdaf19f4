"""Measuring a rate: what counts, in which order, when it ends, and that nothing measured is lost or repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from specdebug.base.trial import TrialResult, trial_seed
from specdebug.campaign.trials.campaign import Campaign
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.sampling import RateSampling, Sampled
from tests.campaign.trials.searches import PASSED, UNTESTABLE, Notes, Source, failed


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


def test_the_rule_is_not_asked_where_nothing_was_tested(tmp_path: Path) -> None:
    asked: list[tuple[int, int]] = []

    def note(failures: int, runs: int) -> bool:
        asked.append((failures, runs))
        return False

    sampled = sample(scripted([UNTESTABLE]), tmp_path / "j", note)
    assert (sampled.reason, sampled.tally.trials, asked) == ("untestable", 20, [])


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
