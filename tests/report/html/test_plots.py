"""The plots of bisect and flake, taken apart."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from specdebug.report.html.trials import history, rate_plot
from specdebug.search.intervals import anytime_interval
from tests.report.trials import chooser, searched


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
