"""Thresholds: how they are read, and what is held against them."""

from __future__ import annotations

import pytest

from specdebug.apps.evaluation.gate import (
    ACCEPT_LENGTH,
    SCORE,
    Threshold,
    ThresholdError,
    accept_length_of,
    check,
    parse_threshold,
    score_of,
)


@pytest.mark.parametrize(
    ("text", "threshold", "said"),
    [
        (">=0.72", Threshold(0.72), ">=0.72"),
        ("> 0.72", Threshold(0.72, strict=True), ">0.72"),
        ("72%", Threshold(0.72), ">=0.72"),
        (".5", Threshold(0.5), ">=0.5"),
    ],
)
def test_a_threshold_is_at_least_unless_it_says_more_than(text: str, threshold: Threshold, said: str) -> None:
    assert parse_threshold(text, *SCORE) == threshold
    assert str(threshold) == said


@pytest.mark.parametrize(
    ("text", "bounds", "said"),
    [
        ("<0.5", SCORE, "must be such as '>=0.72' or '>2.26', got '<0.5'"),
        ("72", SCORE, "must be from 0 to 1, got 72"),
        ("0.5", ACCEPT_LENGTH, "must be from 1 to 1024, got 0.5"),
        ("nan", SCORE, "must be such as"),
    ],
)
def test_what_is_no_threshold_is_refused(text: str, bounds: tuple[float, float], said: str) -> None:
    with pytest.raises(ThresholdError) as caught:
        parse_threshold(text, *bounds)
    assert str(caught.value).startswith(said)


def test_the_mean_itself_decides_and_a_threshold_inside_the_interval_is_said_to_be() -> None:
    score = score_of(46, 64, 0.95)
    assert score.value == 46 / 64
    (near,) = check(score, Threshold(0.72), "")
    assert (near.held, near.inside) == (False, True)
    (far,) = check(score, Threshold(0.5), "")
    assert (far.held, far.inside) == (True, False)
    assert check(score, None, "") == []


def test_equal_is_enough_unless_more_is_asked_for() -> None:
    half = score_of(1, 2, 0.95)
    assert check(half, Threshold(0.5), "")[0].held is True
    assert check(half, Threshold(0.5, strict=True), "")[0].held is False


def test_nothing_is_decided_of_what_was_not_measured_or_not_measured_to_the_end() -> None:
    (blind,) = check(accept_length_of([], 0.95, "this target tells none"), Threshold(2.0), "")
    assert (blind.held, blind.why) == (None, "this target tells none")
    (cut,) = check(score_of(10, 10, 0.95), Threshold(0.5), "3 of 13 questions have no answer")
    assert (cut.held, cut.why) == (None, "3 of 13 questions have no answer")
    assert score_of(0, 0, 0.95).value is None


def test_the_accept_length_is_over_verifies() -> None:
    measured = accept_length_of([(6, 6, 6), (1,), ()], 0.95, "")
    assert (measured.value, measured.number) == (19 / 4, 4)
    assert measured.interval is not None
    assert measured.interval.low == 1.0, "no verify gives less"
    assert accept_length_of([(), ()], 0.95, "").why == "no draft was verified"
