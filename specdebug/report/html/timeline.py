"""A plot of the engine's steps: phase, batch size, time, and the requests that finished or were retracted."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from specdebug.campaign.loops.steplog import EngineStep
from specdebug.report.html.accept import hits, step_scale
from specdebug.report.html.marks import marks
from specdebug.report.html.series import Span, spans, spans_for
from specdebug.report.html.svg import LEFT, Scale, dot, drawing, join, polygon, rect, text, x_axis, y_axis
from specdebug.verdict.outcome import Outcome

KINDS = ("prefill", "decode", "idle", "served")

_PHASE = (34, 54)
_BATCH = (92, 142)
_TIME = (178, 228)
_ENDS = 250
_BOTTOM = 268
HEIGHT = 304


def timeline_plot(steps: Sequence[EngineStep], outcome: Outcome, arms: int = 1) -> Markup | None:
    """The plot of one of so many arms; None where it took no step."""
    if not steps:
        return None
    drawn = spans(steps, spans_for(arms))
    x = step_scale(steps)
    counts = {kind: sum(span.kinds[kind] for span in drawn) for kind in kinds_of(steps)}
    finished, retracted = sum(len(span.finished) for span in drawn), sum(len(span.retracted) for span in drawn)
    batches, seconds = [span.batch for span in drawn], [span.seconds for span in drawn]
    label = (
        f"Timeline of {len(steps)} steps: {', '.join(f'{count} {kind}' for kind, count in counts.items())}; "
        f"largest batch {max(batches)}, {finished} requests finished, {retracted} retractions"
    )
    batch = Scale(0, max(1, *batches), _BATCH[1], _BATCH[0])
    time = Scale(0, max(seconds) or 1e-6, _TIME[1], _TIME[0])
    return drawing(
        HEIGHT,
        label,
        text(LEFT, _PHASE[0] - 8, "phase", class_="title"),
        join(_phases(span, x) for span in drawn),
        y_axis(batch, "batch size", about=2),
        _bars(drawn, x, batches, batch, "batch"),
        y_axis(time, "time of the step (ms; the longest where several are drawn as one)", lambda s: f"{1000 * s:g}", 2),
        _bars(drawn, x, seconds, time, "time"),
        text(LEFT - 6, _ENDS + 4, "ends", class_="tick", text_anchor="end"),
        join(_ends(span, x) for span in drawn),
        x_axis(x, _BOTTOM, "step"),
        hits(drawn, x, _PHASE[0] - 10, _BOTTOM),
        marks(outcome, x, _PHASE[0] - 19, _BOTTOM),
    )


def kinds_of(steps: Sequence[EngineStep]) -> list[str]:
    """The phases that some steps are in."""
    there = {step.kind for step in steps}
    return [kind for kind in KINDS if kind in there]


def _phases(span: Span, x: Scale) -> Markup:
    """Each kind's share of the steps, one above the other."""
    left, right = x(span.first - 0.5), x(span.last + 0.5)
    total, at, parts = span.kinds.total(), float(_PHASE[0]), []
    for kind in KINDS:
        height = (_PHASE[1] - _PHASE[0]) * span.kinds[kind] / total
        if height:
            parts.append(rect(left, at, right - left, height, class_=f"kind {kind}"))
        at += height
    return join(parts)


def _bars(drawn: Sequence[Span], x: Scale, values: Sequence[float], y: Scale, style: str) -> Markup:
    """A stepped area over the spans."""
    points = [(x(drawn[0].first - 0.5), y(0))]
    for span, value in zip(drawn, values, strict=True):
        points += [(x(span.first - 0.5), y(value)), (x(span.last + 0.5), y(value))]
    return polygon([*points, (x(drawn[-1].last + 0.5), y(0))], class_=f"area {style}")


def _ends(span: Span, x: Scale) -> Markup:
    """A dot where requests finished, a triangle where some were retracted."""
    at, parts = x(span.middle), []
    if span.finished:
        parts.append(dot(at, _ENDS, 3.5, "finished"))
    if span.retracted:
        corners = [(at - 5, _ENDS - 5), (at + 5, _ENDS - 5), (at, _ENDS + 5)]
        parts.append(polygon(corners, class_="retracted"))
    return join(parts)
