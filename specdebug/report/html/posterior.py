"""The posterior of a search: the probability of each of the likeliest culprits after every trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.search import Clusters
from specdebug.report.html import svg
from specdebug.report.html.series import MAX_SPANS, chunks
from specdebug.search.posterior import BayesianSearch

TOP, BOTTOM, STRIP, HEIGHT = 30, 210, 250, 300

LINES = 5
"""Culprits with a line of their own."""

LOOKS = 200
"""Looks at the posterior, at most."""

Verdict = Literal["fail", "pass", "other", "untestable"]
Belief = tuple[tuple[frozenset[str], float], ...]


@dataclass(frozen=True)
class History:
    """The beliefs after so many trials. ``looks``: from 0 trials on, in order."""

    looks: tuple[tuple[int, Belief], ...]
    verdicts: tuple[Verdict, ...]

    @property
    def likeliest(self) -> list[frozenset[str]]:
        """The culprits to draw: those of the last look, the likeliest first."""
        return [culprits for culprits, _ in self.looks[-1][1]][:LINES]


def history(
    trials: Sequence[tuple[Trial, TrialResult]],
    chooser: Callable[[], BayesianSearch],
    pattern: str | None,
    top: int = 64,
) -> History:
    """Draw the conclusions again, trial by trial, from the journal.

    Failures are judged by the signature that was followed in the end, whatever was followed at their time.

    Args:
        trials: those that count, in the order of their numbers.
        chooser: makes a chooser that has seen no trial yet.
        pattern: the signatures to follow, if they were given.
        top: culprits whose probability is kept at each look; one that is not among them counts as 0.
    """
    clusters = Clusters(pattern)
    for _, result in trials:
        clusters.add(result)
    belief = chooser()
    looks = [(0, tuple(belief.posterior(top)))]
    counted = 0
    for run in chunks(trials, LOOKS):
        for trial, result in run:
            belief.observe(trial.reverted, clusters.verdict(result))
        counted += len(run)
        looks.append((counted, tuple(belief.posterior(top))))
    return History(tuple(looks), tuple(_verdict(clusters, result) for _, result in trials))


def posterior_plot(past: History, names: Sequence[str]) -> Markup:
    """The plot, and below it a strip of the trials' verdicts. ``names`` are those of ``past.likeliest``."""
    total = len(past.verdicts)
    x, y = svg.across(0, max(total, 1)), svg.Scale(0, 1, BOTTOM, TOP)
    last = dict(past.looks[-1][1])
    label = f"Posterior over {total} trials; in the end " + ", ".join(
        f"{name} {last[culprits]:.3f}" for name, culprits in zip(names, past.likeliest, strict=True)
    )
    lines = []
    for place, culprits in enumerate(past.likeliest, 1):
        points = [(x(counted), y(dict(belief).get(culprits, 0.0))) for counted, belief in past.looks]
        lines.append(svg.polyline(points, class_=f"culprit c{place}"))
        lines.append(svg.dot(*points[-1], 3.5, f"culprit c{place}"))
    return svg.drawing(
        HEIGHT,
        label,
        svg.y_axis(y, "probability"),
        svg.join(reversed(lines)),
        svg.text(svg.LEFT, STRIP - 14, "trials", class_="title"),
        _strip(past.verdicts, x),
        svg.x_axis(x, STRIP + 14, "trials that count"),
        _hits(past, names, x),
    )


def posterior_bars(belief: Sequence[tuple[str, float]]) -> Markup:
    """The posterior in the end, a bar each."""
    height, label_width = 26.0, 300.0
    x = svg.Scale(0, 1, svg.LEFT + label_width, svg.WIDTH - svg.RIGHT - 60)
    bars = []
    for place, (name, probability) in enumerate(belief):
        at = 12 + place * height
        shown = name if len(name) <= 42 else name[:41] + "…"
        bars += [
            svg.text(x.start - 10, at + 13, shown, text_anchor="end", class_="name", data_tip=name),
            svg.line(x.start, at + 9, x.end, at + 9, class_="grid"),
            svg.rect(x.start, at, x(probability) - x.start, 18, class_=f"culprit c{place + 1}"),
            svg.text(x(probability) + 8, at + 13, f"{probability:.3f}", class_="name"),
        ]
    label = "Posterior: " + ", ".join(f"{name} {probability:.3f}" for name, probability in belief)
    return svg.drawing(24 + height * len(belief), label, *bars)


def _strip(verdicts: Sequence[Verdict], x: svg.Scale) -> Markup:
    """A tick a trial; of many trials the shares of their verdicts, one above the other."""
    parts, start = [], 0
    for run in chunks(verdicts, MAX_SPANS):
        left, width, below = x(start), x(start + len(run)) - x(start), float(STRIP + 10)
        start += len(run)
        gap = min(1.0, width / 4)
        for kind in ("fail", "other", "untestable", "pass"):
            height = 20 * run.count(kind) / len(run)
            if height:
                below -= height
                parts.append(svg.rect(left, below, width - gap, height, class_=f"trial {kind}"))
    return svg.join(parts)


def _hits(past: History, names: Sequence[str], x: svg.Scale) -> Markup:
    columns = []
    for (before, _), (counted, belief) in zip(past.looks, past.looks[1:], strict=False):
        known = dict(belief)
        run = past.verdicts[before:counted]
        what = run[0] if len(run) == 1 else f"{run.count('fail')} of {len(run)} failed"
        lines = [f"after {counted} trials ({what})"]
        lines += [f"{known.get(one, 0.0):.3f} {name}" for name, one in zip(names, past.likeliest, strict=True)]
        width = x(counted) - x(before)
        columns.append(svg.rect(x(before), TOP, width, STRIP + 10 - TOP, class_="hit", data_tip="\n".join(lines)))
    return svg.join(columns)


def _verdict(clusters: Clusters, result: TrialResult) -> Verdict:
    if result.outcome == "untestable":
        return "untestable"
    return {True: "fail", False: "pass", None: "other"}[clusters.verdict(result)]  # type: ignore[return-value]
