"""Accept length over the steps: a thin line a request, and a thick one, the mean of each step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from specdebug.campaign.loops.steplog import EngineStep
from specdebug.report.html import svg
from specdebug.report.html.marks import marks
from specdebug.report.html.series import Span, chunks, spans, spans_for
from specdebug.verdict.outcome import Outcome

TOP, BOTTOM, HEIGHT = 44, 224, 260

MAX_LINES = 120
"""Requests with a line of their own: those that come first."""

MAX_POINTS = 12_000
"""Points of all those lines together, on the whole page."""

FEW = 8
"""More lines than that are drawn fainter, so that the mean stays in sight."""

DOTS = 150
"""Up to so many steps the points of the mean are drawn, too."""


def accept_plot(steps: Sequence[EngineStep], outcome: Outcome, arms: int = 1) -> Markup | None:
    """The plot of one of so many arms; None where nothing was ever verified."""
    drawn = spans(steps, spans_for(arms))
    if not any(span.accept is not None for span in drawn):
        return None
    x, y = _scales([steps])
    lines = [
        svg.polyline([(x(at), y(length)) for at, length in points], class_="request", data_rid=rid)
        for rid, points in request_lines(steps, MAX_POINTS // arms).items()
    ]
    means = [span.accept for span in drawn if span.accept is not None]
    label = (
        f"Accept length over steps {steps[0].number} to {steps[-1].number}: "
        f"mean of a step between {min(means):.2f} and {max(means):.2f}, {len(lines)} requests"
    )
    return svg.drawing(
        HEIGHT,
        label,
        svg.y_axis(y, "accept length (tokens a verify)", above=26),
        svg.x_axis(x, BOTTOM, "step"),
        svg.element("g", *lines, stroke_opacity=0.6 if len(lines) <= FEW else 0.2),
        _mean(drawn, x, y, "mean"),
        hits(drawn, x, TOP, BOTTOM),
        marks(outcome, x, TOP, BOTTOM),
    )


def accept_overlay(arms: Mapping[str, Sequence[EngineStep]]) -> Markup | None:
    """The means of two arms in one plot; None where neither verified anything."""
    drawn = {name: spans(steps) for name, steps in arms.items() if any(step.lengths for step in steps)}
    if not drawn:
        return None
    x, y = _scales([steps for steps in arms.values() if steps])
    order = list(arms)
    return svg.drawing(
        HEIGHT,
        f"Mean accept length of each step: {' and '.join(drawn)}",
        svg.y_axis(y, "mean accept length of the step"),
        svg.x_axis(x, BOTTOM, "step"),
        *(_mean(those, x, y, f"mean side{order.index(name) + 1}", name) for name, those in drawn.items()),
    )


def request_lines(steps: Sequence[EngineStep], points: int = MAX_POINTS) -> dict[str, list[svg.Point]]:
    """Of the first requests, the mean accept length in each step that verified them; thinned to ``points`` in all."""
    series: dict[str, list[svg.Point]] = {}
    for step in steps:
        for rid, lengths in step.accept.items():
            if lengths and (rid in series or len(series) < MAX_LINES):
                series.setdefault(rid, []).append((step.number, sum(lengths) / len(lengths)))
    most = max(2, points // max(1, len(series)))
    return {rid: [_middle(run) for run in chunks(those, most)] for rid, those in series.items()}


def hits(drawn: Sequence[Span], x: svg.Scale, top: float, bottom: float) -> Markup:
    """An invisible column for each step, which shows the step's tip under the pointer."""
    edges = ((x(span.first - 0.5), x(span.last + 0.5), span.tip) for span in drawn)
    return svg.join(
        svg.rect(low, top, high - low, bottom - top, class_="hit", data_tip=tip) for low, high, tip in edges
    )


def step_scale(steps: Sequence[EngineStep]) -> svg.Scale:
    """Across all steps, with half a step to spare at each end."""
    return svg.across(steps[0].number - 0.5, steps[-1].number + 0.5)


def _scales(arms: Sequence[Sequence[EngineStep]]) -> tuple[svg.Scale, svg.Scale]:
    low, high = min(steps[0].number for steps in arms), max(steps[-1].number for steps in arms)
    longest = max((length for steps in arms for step in steps for length in step.lengths), default=1)
    return svg.across(low - 0.5, high + 0.5), svg.Scale(0, longest + 0.5, BOTTOM, TOP)


def _mean(drawn: Sequence[Span], x: svg.Scale, y: svg.Scale, style: str, name: str | None = None) -> Markup:
    """The mean of each span, in the band of its steps' means. Steps without a verify interrupt the line."""
    parts: list[str] = []
    for verified, group in itertools.groupby(drawn, key=lambda span: span.accept is not None):
        run = list(group)
        if not verified:
            continue
        if any(span.first != span.last for span in run):
            upper = [(x(span.middle), y(span.accept_high)) for span in run]
            lower = [(x(span.middle), y(span.accept_low)) for span in reversed(run)]
            parts.append(svg.polygon([*upper, *lower], class_=f"band {style}"))
        points = [(x(span.middle), y(span.accept or 0.0)) for span in run]
        if len(points) > 1:
            parts.append(svg.polyline(points, class_=style))
        if len(drawn) <= DOTS or len(points) == 1:
            parts += [svg.dot(at, height, 2.5, style) for at, height in points]
    return svg.element("g", *parts, data_tip=name)


def _middle(run: Sequence[svg.Point]) -> svg.Point:
    return sum(at for at, _ in run) / len(run), sum(length for _, length in run) / len(run)
