"""A failure rate while it is measured: the rate so far and the confidence sequence around it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from specdebug.report.html import svg
from specdebug.report.html.series import MAX_SPANS
from specdebug.search.intervals import anytime_bounds

TOP, BOTTOM, HEIGHT = 30, 250, 286


def rate_plot(failed: Sequence[bool], confidence: float, claimed: Sequence[float] = ()) -> Markup | None:
    """The plot; None before the first run.

    Args:
        failed: of every run with a verdict, in order, True if it failed.
        confidence: the confidence of the sequence.
        claimed: the rates of the claim, which are marked.
    """
    if not failed:
        return None
    total = len(failed)
    looks = np.unique(np.linspace(1, total, min(total, MAX_SPANS)).round().astype(int))
    failures = np.cumsum(np.asarray(failed, dtype=int))[looks - 1]
    low, high = anytime_bounds(failures, looks, confidence)
    rates = failures / looks
    tallest = min(1.0, 1.15 * max(float(np.median(high)), float(rates[-1]), *claimed, 0.02))
    x, y = svg.across(0, total), svg.Scale(0, tallest, BOTTOM, TOP)

    def height(rate: float) -> float:
        return y(min(rate, tallest))

    upper, lower, middle = (
        [(x(run), height(value)) for run, value in zip(looks.tolist(), values.tolist(), strict=True)]
        for values in (high, low, rates)
    )
    label = (
        f"Failure rate over {total} runs: in the end {float(rates[-1]):.2%}, "
        f"{confidence:.4g} interval {float(low[-1]):.2%} to {float(high[-1]):.2%}"
    )
    return svg.drawing(
        HEIGHT,
        label,
        svg.y_axis(y, "failure rate", lambda rate: f"{100 * rate:g}%"),
        svg.x_axis(x, BOTTOM, "runs with a verdict"),
        svg.polygon([*upper, *reversed(lower)], class_="band mean"),
        svg.join(svg.line(x.start, height(rate), x.end, height(rate), class_="claimed") for rate in claimed),
        svg.polyline(middle, class_="mean"),
        svg.dot(*middle[-1], 3.5, "mean"),
        _failures(failed, x),
        _hits(looks.tolist(), failures.tolist(), low.tolist(), high.tolist(), x),
    )


def _failures(failed: Sequence[bool], x: svg.Scale) -> Markup:
    """A tick at the lower edge for every failure; neighbours that fall on one spot are drawn once."""
    spots = dict.fromkeys(round(x(run), 1) for run, bad in enumerate(failed, 1) if bad)
    return svg.join(svg.line(at, BOTTOM - 9, at, BOTTOM, class_="failure") for at in spots)


def _hits(looks: list[int], failures: list[int], low: list[float], high: list[float], x: svg.Scale) -> Markup:
    columns, before = [], 0
    for run, bad, least, most in zip(looks, failures, low, high, strict=True):
        tip = f"{bad} of {run} failed: {bad / run:.2%}\nbetween {least:.2%} and {most:.2%}"
        columns.append(svg.rect(x(before), TOP, x(run) - x(before), BOTTOM - TOP, class_="hit", data_tip=tip))
        before = run
    return svg.join(columns)
