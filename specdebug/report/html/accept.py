"""Accept length over the steps: a thin line a request, and a thick one, the mean of each step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from specdebug.loops.steplog import EngineStep
from specdebug.report.html.marks import marks
from specdebug.report.html.series import Span, chunks, spans, spans_for
from specdebug.report.html.svg import (
    Point,
    Scale,
    across,
    drawing,
    element,
    join,
    polygon,
    polyline,
    rect,
    x_axis,
    y_axis,
)
from specdebug.verdict.outcome import Outcome

TOP, BOTTOM, HEIGHT = 44, 224, 260

MAX_LINES = 120
"""Requests with a line of their own: those that come first."""

MAX_POINTS = 12_000
"""Of all those lines together, on the whole page."""

FEW = 8
"""More lines than that are drawn fainter, so that the mean stays in sight."""

DOTS = 150
"""Up to so many steps the mean's points are drawn, too."""


def accept_plot(steps: Sequence[EngineStep], outcome: Outcome, arms: int = 1) -> Markup | None:
    """The plot of one of so many arms; None where nothing was ever verified."""
    drawn = spans(steps, spans_for(arms))
    if not any(span.accept is not None for span in drawn):
        return None
    lines = request_lines(steps, MAX_POINTS // arms)
    x, y = _scales([steps])
    means = [span.accept for span in drawn if span.accept is not None]
    label = (
        f"Accept length over steps {steps[0].number} to {steps[-1].number}: "
        f"mean of a step between {min(means):.2f} and {max(means):.2f}, {len(lines)} requests"
    )
    return drawing(
        HEIGHT,
        label,
        y_axis(y, "accept length (tokens a verify)", above=26),
        x_axis(x, BOTTOM, "step"),
        element(
            "g",
            *(
                polyline([(x(at), y(length)) for at, length in points], class_="request", data_rid=rid)
                for rid, points in lines.items()
            ),
            stroke_opacity=0.6 if len(lines) <= FEW else 0.2,
        ),
        _mean(drawn, x, y, "mean"),
        hits(drawn, x, TOP, BOTTOM),
        marks(outcome, x, TOP, BOTTOM),
    )


def accept_overlay(arms: Mapping[str, Sequence[EngineStep]]) -> Markup | None:
    """The means of two arms in one plot; None where neither verified anything."""
    drawn = {name: spans(steps) for name, steps in arms.items() if any(step.accept for step in steps)}
    if not drawn:
        return None
    x, y = _scales([steps for steps in arms.values() if steps])
    order = list(arms)
    return drawing(
        HEIGHT,
        f"Mean accept length of each step: {' and '.join(drawn)}",
        y_axis(y, "mean accept length of the step"),
        x_axis(x, BOTTOM, "step"),
        *(_mean(those, x, y, f"mean side{order.index(name) + 1}", name) for name, those in drawn.items()),
    )


def request_lines(steps: Sequence[EngineStep], points: int = MAX_POINTS) -> dict[str, list[Point]]:
    """Of the first requests, the accept length at each of their verifies; thinned to so many ``points`` in all."""
    series: dict[str, list[Point]] = {}
    for step in steps:
        for rid, length in step.accept.items():
            if rid in series or len(series) < MAX_LINES:
                series.setdefault(rid, []).append((step.number, length))
    most = max(2, points // max(1, len(series)))
    return {rid: [_middle(run) for run in chunks(those, most)] for rid, those in series.items()}


def hits(drawn: Sequence[Span], x: Scale, top: float, bottom: float) -> Markup:
    """Return what the pointer meets: a column for each step, with all that is known of it."""
    return join(
        rect(
            x(span.first - 0.5),
            top,
            x(span.last + 0.5) - x(span.first - 0.5),
            bottom - top,
            class_="hit",
            data_tip=span.tip,
        )
        for span in drawn
    )


def step_scale(steps: Sequence[EngineStep]) -> Scale:
    """Across all steps, with half a step to spare at each end."""
    return across(steps[0].number - 0.5, steps[-1].number + 0.5)


def _scales(arms: Sequence[Sequence[EngineStep]]) -> tuple[Scale, Scale]:
    low, high = min(steps[0].number for steps in arms), max(steps[-1].number for steps in arms)
    longest = max((length for steps in arms for step in steps for length in step.accept.values()), default=1)
    return across(low - 0.5, high + 0.5), Scale(0, longest + 0.5, BOTTOM, TOP)


def _mean(drawn: Sequence[Span], x: Scale, y: Scale, style: str, name: str | None = None) -> Markup:
    """The mean of each span, with the band that its steps' means lie in where a span has several. Steps without a
    verify interrupt the line."""
    parts: list[str] = []
    for verified, group in itertools.groupby(drawn, key=lambda span: span.accept is not None):
        run = list(group)
        if not verified:
            continue
        middles = [x((span.first + span.last) / 2) for span in run]
        if any(span.first != span.last for span in run):
            upper = [(at, y(span.accept_high)) for at, span in zip(middles, run, strict=True)]
            lower = [(at, y(span.accept_low)) for at, span in zip(middles, run, strict=True)]
            parts.append(polygon([*upper, *reversed(lower)], class_=f"band {style}"))
        points = [(at, y(span.accept or 0.0)) for at, span in zip(middles, run, strict=True)]
        if len(points) > 1:
            parts.append(polyline(points, class_=style))
        if len(drawn) <= DOTS or len(points) == 1:
            parts += [element("circle", cx=at, cy=height, r=2.5, class_=style) for at, height in points]
    return element("g", *parts, data_tip=name)


def _middle(run: Sequence[Point]) -> Point:
    return sum(at for at, _ in run) / len(run), sum(length for _, length in run) / len(run)
