"""Plots over the steps of an engine: accept lengths, and a timeline, with marks for findings and injected faults.

Several steps in a row are drawn as one span where there are many.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from specdebug.campaign.loops.steplog import EngineStep
from specdebug.report.html import svg
from specdebug.report.html.svg import LEFT, MAX_SPANS, Point, Scale, chunks
from specdebug.report.words import some
from specdebug.verdict.outcome import Outcome

LEAST_SPANS = 100
"""Steps that a plot draws apart at least, however many arms a page has."""
MAX_RIDS = 6
"""Requests that a tip names of those that finished or were retracted."""
TOP, BOTTOM, HEIGHT = 44, 224, 260
MAX_LINES = 120
"""Requests with a line of their own: those that come first."""
MAX_POINTS = 12_000
"""Points of all those lines together, on the whole page."""
FEW = 8
"""More lines than that are drawn fainter, so that the mean stays in sight."""
DOTS = 150
"""Up to so many steps the points of the mean are drawn, too."""
MAX_MARKS = 12
"""Findings, and injections, that are marked; the tables have them all."""
CLOSE = 24
"""Units between two labels at least; a label that is nearer is left to the tables and the tips."""
KINDS = ("prefill", "decode", "idle", "served")
_PHASE, _BATCH, _TIME = (34, 54), (92, 142), (178, 228)
_ENDS, _BOTTOM, _HEIGHT = 250, 268, 304
"""Places of the timeline's parts, from above."""


@dataclass(frozen=True)
class Span:
    """One step, or several in a row.

    Attributes:
        first: number of the first step; ``last`` of the last.
        kinds: the number of steps of each kind.
        batch: the most requests in a step.
        accept: mean accept length over all verifies, with the smallest and greatest of a step; None without verifies.
        seconds: the time of the longest step.
    """

    first: int
    last: int
    kinds: Counter[str]
    batch: int
    emitted: int
    accept: float | None
    accept_low: float
    accept_high: float
    finished: tuple[str, ...]
    retracted: tuple[str, ...]
    seconds: float

    @property
    def name(self) -> str:
        """``step 3``, ``steps 41-60``."""
        return f"step {self.first}" if self.first == self.last else f"steps {self.first}-{self.last}"

    @property
    def middle(self) -> float:
        return (self.first + self.last) / 2

    @property
    def kind(self) -> str:
        """``decode``, or of several ``decode 18, prefill 2``."""
        if len(self.kinds) == 1:
            return next(iter(self.kinds))
        return ", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common())

    @property
    def tip(self) -> str:
        """All facts of the span, line by line."""
        several = self.first != self.last
        lines = [f"{self.name}: {self.kind}", f"{'largest batch' if several else 'batch'} {self.batch}"]
        if self.accept is not None:
            lines.append(f"accept length {self.accept:.2f}")
        lines += [f"{self.emitted} tokens", f"{'longest ' if several else ''}{1000 * self.seconds:.1f} ms"]
        ends = {"finished": self.finished, "retracted": self.retracted}
        return "\n".join([*lines, *(f"{what}: {some(rids, MAX_RIDS)}" for what, rids in ends.items() if rids)])


def spans(steps: Sequence[EngineStep], most: int = MAX_SPANS) -> list[Span]:
    """The steps in at most ``most`` runs."""
    return [_span(run) for run in chunks(steps, most)]


def _span(run: Sequence[EngineStep]) -> Span:
    lengths = [length for step in run for length in step.lengths]
    means = [mean for step in run if (mean := step.accept_mean) is not None]
    return Span(
        first=run[0].number,
        last=run[-1].number,
        kinds=Counter(step.kind for step in run),
        batch=max(len(step.rids) for step in run),
        emitted=sum(step.emitted for step in run),
        accept=sum(lengths) / len(lengths) if lengths else None,
        accept_low=min(means, default=0.0),
        accept_high=max(means, default=0.0),
        finished=tuple(rid for step in run for rid in step.finished),
        retracted=tuple(rid for step in run for rid in step.retracted),
        seconds=max(step.seconds for step in run),
    )


def spans_for(arms: int) -> int:
    """The most spans of an arm's plot on a page of so many arms, so that the page's size stays in bounds."""
    return max(LEAST_SPANS, min(MAX_SPANS, 3 * MAX_SPANS // (arms + 2)))


def accept_plot(steps: Sequence[EngineStep], outcome: Outcome, arms: int = 1) -> Markup | None:
    """A thin line a request, and a thick one, the mean of each step, of one of so many arms; None where nothing was
    ever verified."""
    drawn = spans(steps, spans_for(arms))
    means = [span.accept for span in drawn if span.accept is not None]
    if not means:
        return None
    x, y = _scales([steps])
    lines = [
        svg.polyline([(x(at), y(length)) for at, length in points], class_="request", data_rid=rid)
        for rid, points in request_lines(steps, MAX_POINTS // arms).items()
    ]
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
        _hits(drawn, x, TOP, BOTTOM),
        _marks(outcome, x, TOP, BOTTOM),
    )


def accept_overlay(arms: Mapping[str, Sequence[EngineStep]], style: str = "mean side") -> Markup | None:
    """The means of arms in one plot, styled by their places; None where none verified anything."""
    drawn = {name: spans(steps) for name, steps in arms.items() if any(step.lengths for step in steps)}
    if not drawn:
        return None
    x, y = _scales([steps for steps in arms.values() if steps])
    sides = enumerate(arms, 1)
    return svg.drawing(
        HEIGHT,
        f"Mean accept length of each step: {' and '.join(drawn)}",
        svg.y_axis(y, "mean accept length of the step"),
        svg.x_axis(x, BOTTOM, "step"),
        *(_mean(drawn[name], x, y, f"{style}{side}", name) for side, name in sides if name in drawn),
    )


def request_lines(steps: Sequence[EngineStep], points: int = MAX_POINTS) -> dict[str, list[Point]]:
    """Of the first requests, the mean accept length in each step that verified them; thinned to ``points`` in all."""
    series: dict[str, list[Point]] = {}
    for step in steps:
        for rid, lengths in step.accept.items():
            if lengths and (rid in series or len(series) < MAX_LINES):
                series.setdefault(rid, []).append((step.number, sum(lengths) / len(lengths)))
    most = max(2, points // max(1, len(series)))
    return {
        rid: [(sum(at for at, _ in run) / len(run), sum(mean for _, mean in run) / len(run)) for run in runs]
        for rid, runs in ((rid, chunks(those, most)) for rid, those in series.items())
    }


def _hits(drawn: Sequence[Span], x: Scale, top: float, bottom: float) -> Markup:
    return svg.hits(((x(span.first - 0.5), x(span.last + 0.5), span.tip) for span in drawn), top, bottom)


def _scales(arms: Sequence[Sequence[EngineStep]]) -> tuple[Scale, Scale]:
    """Across all steps, with half a step to spare at each end, and up to the longest accept length."""
    low, high = min(steps[0].number for steps in arms), max(steps[-1].number for steps in arms)
    longest = max((length for steps in arms for step in steps for length in step.lengths), default=1)
    return svg.across(low - 0.5, high + 0.5), Scale(0, longest + 0.5, BOTTOM, TOP)


def _mean(drawn: Sequence[Span], x: Scale, y: Scale, style: str, name: str | None = None) -> Markup:
    """The mean of each span, in the band of its steps' means. Steps without a verify interrupt the line."""
    parts: list[str] = []
    for verified, group in itertools.groupby(drawn, key=lambda span: span.accept is not None):
        run = list(group)
        if not verified:
            continue
        if any(span.first != span.last for span in run):
            upper = [(x(span.middle), y(span.accept_high)) for span in run]
            lower = [(x(span.middle), y(span.accept_low)) for span in reversed(run)]
            parts.append(svg.polyline([*upper, *lower], "polygon", class_=f"band {style}"))
        points = [(x(span.middle), y(span.accept or 0.0)) for span in run]
        if len(points) > 1:
            parts.append(svg.polyline(points, class_=style))
        if len(drawn) <= DOTS or len(points) == 1:
            parts += [svg.dot(at, height, 2.5, style) for at, height in points]
    return svg.element("g", *parts, data_tip=name)


def _marks(outcome: Outcome, x: Scale, top: float, bottom: float) -> Markup:
    """Dashed lines at the steps of the first findings, solid ones at those of the first injections; their numbers are
    those of the tables. At one step the names of injections stand below those of findings."""
    found = [(one.step, f"{one.signature} at step {one.step}") for one in outcome.violations]
    injected = [(one.step, str(one)) for one in outcome.injections]
    groups = (("injected", "i", injected, bottom - 3), ("finding", "", found, top - 3))
    return svg.join(_mark_lines(style, letter, told, x, (top, bottom, at)) for style, letter, told, at in groups)


def _mark_lines(
    style: str, letter: str, told: Sequence[tuple[int | None, str]], x: Scale, places: tuple[float, float, float]
) -> Markup:
    top, bottom, height = places
    steps: dict[int, list[tuple[int, str]]] = {}
    for place, (step, tip) in enumerate(told[:MAX_MARKS], 1):
        if step is not None and x.low <= step <= x.high + 1:  # a step that was never completed is one past the last
            steps.setdefault(step, []).append((place, f"{letter}{place}. {tip}"))
    parts, labelled = [], float("-inf")
    for step, those in sorted(steps.items()):
        numbers = [place for place, _ in those]
        in_a_row = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
        label = f"{numbers[0]}-{numbers[-1]}" if in_a_row else ",".join(map(str, numbers))
        tips = "\n".join(tip for _, tip in those)
        parts.append(svg.line(x(step), top, x(step), bottom, class_=style, data_tip=tips))
        if x(step) - labelled >= CLOSE:
            parts.append(svg.text(x(step), height, letter + label, class_=style, text_anchor="middle"))
            labelled = x(step)
    return svg.element("g", *parts, class_="marks")


def timeline_plot(steps: Sequence[EngineStep], outcome: Outcome, arms: int = 1) -> Markup:
    """Phase, batch size, time, and the requests that finished or were retracted, of one of so many arms."""
    drawn = spans(steps, spans_for(arms))
    x = svg.across(steps[0].number - 0.5, steps[-1].number + 0.5)
    counts = ", ".join(f"{sum(span.kinds[kind] for span in drawn)} {kind}" for kind in kinds_of(steps))
    finished, retracted = (sum(len(getattr(span, name)) for span in drawn) for name in ("finished", "retracted"))
    batches, seconds = [span.batch for span in drawn], [span.seconds for span in drawn]
    label = (
        f"Timeline of {len(steps)} steps: {counts}; "
        f"largest batch {max(batches)}, {finished} requests finished, {retracted} retractions"
    )
    batch = Scale(0, max(1, *batches), _BATCH[1], _BATCH[0])
    time = Scale(0, max(seconds) or 1e-6, _TIME[1], _TIME[0])
    longest = "time of the step (ms; the longest where several are drawn as one)"
    return svg.drawing(
        _HEIGHT,
        label,
        svg.text(LEFT, _PHASE[0] - 8, "phase", class_="title"),
        svg.join(_phases(span, x) for span in drawn),
        svg.y_axis(batch, "batch size", about=2),
        _bars(drawn, x, batches, batch, "batch"),
        svg.y_axis(time, longest, lambda s: f"{1000 * s:g}", 2),
        _bars(drawn, x, seconds, time, "time"),
        svg.text(LEFT - 6, _ENDS + 4, "ends", class_="tick", text_anchor="end"),
        svg.join(_ends(span, x) for span in drawn),
        svg.x_axis(x, _BOTTOM, "step"),
        _hits(drawn, x, _PHASE[0] - 10, _BOTTOM),
        _marks(outcome, x, _PHASE[0] - 19, _BOTTOM),
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
            parts.append(svg.rect(left, at, right - left, height, class_=f"kind {kind}"))
        at += height
    return svg.join(parts)


def _bars(drawn: Sequence[Span], x: Scale, values: Sequence[float], y: Scale, style: str) -> Markup:
    """A stepped area over the spans."""
    points = [(x(drawn[0].first - 0.5), y(0))]
    for span, value in zip(drawn, values, strict=True):
        points += [(x(span.first - 0.5), y(value)), (x(span.last + 0.5), y(value))]
    return svg.polyline([*points, (x(drawn[-1].last + 0.5), y(0))], "polygon", class_=f"area {style}")


def _ends(span: Span, x: Scale) -> Markup:
    """A dot where requests finished, a triangle where some were retracted."""
    at = x(span.middle)
    corners = [(at - 5, _ENDS - 5), (at + 5, _ENDS - 5), (at, _ENDS + 5)]
    finished = [svg.dot(at, _ENDS, 3.5, "finished")] if span.finished else []
    return svg.join([*finished, *([svg.polyline(corners, "polygon", class_="retracted")] if span.retracted else [])])
