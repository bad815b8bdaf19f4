"""The pages of bisect and flake, taken apart."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from specdebug.base.trial import Trial, TrialResult
from specdebug.report.html.bisect import bisect_page
from specdebug.report.html.flake import failed, flake_page
from specdebug.report.html.posterior import LOOKS, history, posterior_plot
from specdebug.report.html.rate import rate_plot
from specdebug.stats.intervals import anytime_interval
from tests.report.html.samples import Page
from tests.report.html.trials import Judge, chooser, sampled, searched


def passes(trial: Trial) -> TrialResult:
    return TrialResult("pass", None, 0.1)


def untestable(trial: Trial) -> TrialResult:
    return TrialResult("untestable", None, 0.1, "no device")


def page_of_search(folder: Path, judge: Judge | None = None, most: int = 200) -> Page:
    findings, subject, journal = searched(folder, most=most) if judge is None else searched(folder, judge, most)
    with journal:
        return Page(
            bisect_page(findings, subject, 0, journal.trials, journal.evidence, chooser, None, "specdebug bisect")
        )


def test_the_history_ends_where_the_search_did_and_says_what_each_trial_was(tmp_path: Path) -> None:
    findings, _, journal = searched(tmp_path)
    with journal:
        trials = [journal.trials[number] for number in range(findings.standing.trials)]
    past = history(trials, chooser, None)
    assert findings.answer is not None
    assert [counted for counted, _ in past.looks] == list(range(len(trials) + 1))  # few enough for a look at each
    ended = dict(past.looks[-1][1])
    for culprits, probability in findings.standing.posterior:
        assert ended[culprits] == pytest.approx(probability)
    assert len(past.verdicts) == len(trials)
    for (trial, result), verdict in zip(trials, past.verdicts, strict=True):
        assert (verdict == "untestable") == (trial.number % 11 == 7) == (result.outcome == "untestable")
        assert (verdict == "other") == (result.signature == "exit:9")


def test_of_many_trials_a_few_hundred_looks_are_kept() -> None:
    trials = [(Trial(n, frozenset(), n), TrialResult("pass", None, 0.1)) for n in range(3 * LOOKS)]
    past = history(trials, chooser, None)
    assert len(past.looks) == LOOKS + 1
    assert past.looks[-1][0] == 3 * LOOKS
    names = [str(sorted(culprits)) for culprits in past.likeliest]
    root = ET.fromstring(posterior_plot(past, names))
    tips = [one.get("data-tip") or "" for one in root.iter("rect") if one.get("class") == "hit"]
    assert tips[0].startswith("after 3 trials (0 of 3 failed)\n")
    assert len(tips) == LOOKS


def test_a_search_s_page_names_the_culprit_and_has_every_trial(tmp_path: Path) -> None:
    page = page_of_search(tmp_path)
    assert "culprit: 200" in page.text
    assert 'culprit 200 "fix <200>" with probability' in page.text
    assert "nan@<x>" in page.text
    assert "nan at <b>x</b>" in page.text
    assert "REVERT=200 SEED=" in page.text
    assert "other failure exit:9" in page.text
    assert "7 untestable " in page.text
    labels = [ET.fromstring(plot).get("aria-label") or "" for plot in page.plots]
    assert labels[0].startswith("Posterior: 200 0.9")
    assert labels[1].startswith("Posterior over ")


@pytest.mark.parametrize(
    ("judge", "most", "chip"), [(passes, 300, "no culprit"), (untestable, 300, "undecided"), (None, 2, "undecided")]
)
def test_other_ends_of_a_search(tmp_path: Path, judge: Judge | None, most: int, chip: str) -> None:
    assert chip in page_of_search(tmp_path, judge, most).text


def test_a_search_that_never_ran_a_trial_is_a_page_still(tmp_path: Path) -> None:
    def interrupted(trial: Trial) -> TrialResult:
        raise KeyboardInterrupt

    page = page_of_search(tmp_path, interrupted)
    assert len(page.plots) == 1
    assert "interrupted, after 0 trials" in page.text


def test_the_running_rate_is_drawn_with_its_confidence_sequence() -> None:
    shown = [run % 4 == 0 for run in range(1, 81)]
    plot = rate_plot(shown, 0.95, claimed=(0.4,))
    assert plot is not None
    root = ET.fromstring(plot)
    end = anytime_interval(20, 80, 0.95)
    assert root.get("aria-label") == (
        f"Failure rate over 80 runs: in the end 25.00%, 0.95 interval {end.low:.2%} to {end.high:.2%}"
    )
    tips = [one.get("data-tip") or "" for one in root.iter("rect") if one.get("class") == "hit"]
    assert tips[3].startswith("1 of 4 failed: 25.00%\n")
    assert len(tips) == 80
    assert sum(one.get("class") == "failure" for one in root.iter("line")) == 20
    assert sum(one.get("class") == "claimed" for one in root.iter("line")) == 1
    low, high = anytime_interval(1, 4, 0.95).low, anytime_interval(1, 4, 0.95).high
    assert tips[3].endswith(f"between {low:.2%} and {high:.2%}")
    assert rate_plot([], 0.95) is None


def test_a_long_measurement_is_thinned_out() -> None:
    plot = rate_plot([run % 100 == 0 for run in range(20_000)], 0.99)
    assert plot is not None
    assert len(plot) < 150_000
    assert "in the end 1.00%" in plot


def test_a_measurement_s_page(tmp_path: Path) -> None:
    found, question, journal = sampled(tmp_path)
    with journal:
        page = Page(flake_page(found, question, 1, ["200"], journal.trials, journal.evidence, None, "specdebug flake"))
        (only_nan, untold) = (failed([journal.trials[n] for n in range(120)], pattern) for pattern in ("nan@*", None))
    assert f"{found.tally.failures} of {found.tally.runs} failed" in page.text
    assert "fixes reverted 200" in page.text
    assert "for 109 runs fixed beforehand" in page.text
    assert "SEED=" in page.text
    assert "nan at <b>x</b>" in page.text
    assert (len(untold), sum(untold)) == (found.tally.runs, found.tally.failures)
    assert len(untold) - len(only_nan) == dict(found.tally.signatures)["exit:9"]


@pytest.mark.parametrize(
    ("judge", "claim", "chip"),
    [
        (passes, None, "nothing failed"),
        (passes, "rate<5%", "the claim holds"),
        (untestable, None, "no run came to a verdict"),
        (untestable, "rate<5%", "undecided"),
    ],
)
def test_other_ends_of_a_measurement(tmp_path: Path, judge: Judge, claim: str | None, chip: str) -> None:
    found, question, journal = sampled(tmp_path, judge, claim=claim)
    with journal:
        page = Page(flake_page(found, question, 0, [], journal.trials, journal.evidence, None, "specdebug flake"))
    assert chip in page.text
    assert page.source.count('class="claimed"') == (judge is passes and claim is not None)
    assert len(page.plots) == (judge is passes)
