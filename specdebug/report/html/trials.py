"""Plots over trials: the posterior of a search, and a failure rate with the confidence sequence around it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.search import Clusters
from specdebug.report.html import svg
from specdebug.report.html.svg import MAX_SPANS, chunks
from specdebug.search.intervals import anytime_bounds
from specdebug.search.posterior import BayesianSearch

TOP, BOTTOM, STRIP, HEIGHT = 30, 210, 250, 300
"""Of the posterior; below it lies a strip of the trials' verdicts."""
RATE_BOTTOM, RATE_HEIGHT = 250, 286
LINES = 5
"""Culprits with a line of their own."""
LOOKS = 200
"""Looks at the posterior, at most."""

GRID_ROWS, GRID_NAME = 60, 13
"""Trials of the grid, the last ones; characters of a fix's name above it."""

Verdict = Literal["fail", "pass", "other", "untestable"]
_SIGNS: dict[Verdict, str] = {"fail": "✗", "pass": "✓", "other": "?", "untestable": "-"}
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
    for run in chunks(trials, LOOKS):
        for trial, result in run:
            belief.observe(trial.reverted, clusters.verdict(result))
        looks.append((looks[-1][0] + len(run), tuple(belief.posterior(top))))
    named: dict[bool | None, Verdict] = {True: "fail", False: "pass", None: "other"}
    verdicts: list[Verdict] = [
        "untestable" if result.outcome == "untestable" else named[clusters.verdict(result)] for _, result in trials
    ]
    return History(tuple(looks), tuple(verdicts))


def posterior_plot(past: History, names: Sequence[str]) -> Markup:
    """The probability of each of the likeliest culprits after every trial. ``names`` are those of
    ``past.likeliest``."""
    total = len(past.verdicts)
    x, y = svg.across(0, max(total, 1)), svg.Scale(0, 1, BOTTOM, TOP)
    last = dict(past.looks[-1][1])
    named = list(zip(names, past.likeliest, strict=True))
    label = f"Posterior over {total} trials; in the end " + ", ".join(f"{name} {last[one]:.3f}" for name, one in named)
    lines = []
    for place, culprits in enumerate(past.likeliest, 1):
        points = [(x(counted), y(dict(belief).get(culprits, 0.0))) for counted, belief in past.looks]
        lines.append(svg.polyline(points, class_=f"culprit c{place}"))
        lines.append(svg.dot(*points[-1], 3.5, f"culprit c{place}"))
    tips = []
    for (before, _), (counted, belief) in zip(past.looks, past.looks[1:], strict=False):
        known, run = dict(belief), past.verdicts[before:counted]
        what = run[0] if len(run) == 1 else f"{run.count('fail')} of {len(run)} failed"
        told = [f"after {counted} trials ({what})", *(f"{known.get(one, 0.0):.3f} {name}" for name, one in named)]
        tips.append((x(before), x(counted), "\n".join(told)))
    return svg.drawing(
        HEIGHT,
        label,
        svg.y_axis(y, "probability"),
        svg.join(reversed(lines)),
        svg.text(svg.LEFT, STRIP - 14, "trials", class_="title"),
        _strip(past.verdicts, x),
        svg.x_axis(x, STRIP + 14, "trials that count"),
        svg.hits(tips, TOP, STRIP + 10),
    )


def trial_grid(tried: Sequence[tuple[Trial, Verdict]], names: Mapping[str, str]) -> Markup:
    """Trials by fixes: a row a trial, the last :data:`GRID_ROWS` of them, its fixes filled with what came of it."""
    listed = tried[-GRID_ROWS:]
    left, top, high = 96.0, 92.0, 15.0
    wide = min(70.0, max(24.0, (svg.WIDTH - left - 70) / max(1, len(names))))
    places = {one: left + wide * column for column, one in enumerate(names)}
    parts: list[str] = []
    for one, at in places.items():
        shown = names[one] if len(names[one]) <= GRID_NAME else names[one][: GRID_NAME - 1] + "…"
        x, y = at + wide / 2, top - 8
        turn = f"rotate(-45 {svg.number(x)} {svg.number(y)})"
        parts.append(svg.text(x, y, shown, class_="name", transform=turn, data_tip=names[one]))
    for row, (trial, verdict) in enumerate(listed):
        y = top + high * row
        parts.append(svg.text(left - 10, y + 11, f"{trial.number} {_SIGNS[verdict]}", text_anchor="end", class_="name"))
        for one, x in places.items():
            tried_here = one in trial.reverted
            style = f"trial {verdict}" if tried_here else "cell none"
            tip = f"trial {trial.number}: {verdict}\n{names[one]} {'reverted' if tried_here else 'in place'}"
            parts.append(svg.rect(x, y, wide - 2, high - 2, class_=style, data_tip=tip))
    label = (
        f"{len(listed)} trials by {len(names)} fixes: filled where a trial reverted the fix, coloured by its outcome"
    )
    width = max(float(svg.WIDTH), left + wide * len(names) + 70)
    return svg.drawing(top + high * len(listed) + 8, label, *parts, width=width)


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
            if height := 20 * run.count(kind) / len(run):
                below -= height
                parts.append(svg.rect(left, below, width - gap, height, class_=f"trial {kind}"))
    return svg.join(parts)


def rate_plot(failed: Sequence[bool], confidence: float, claimed: Sequence[float] = ()) -> Markup | None:
    """The rate so far, run by run; None before the first run.

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
    x, y = svg.across(0, total), svg.Scale(0, tallest, RATE_BOTTOM, TOP)
    upper, lower, middle = (
        [(x(run), y(min(value, tallest))) for run, value in zip(looks.tolist(), values.tolist(), strict=True)]
        for values in (high, low, rates)
    )
    label = (
        f"Failure rate over {total} runs: in the end {float(rates[-1]):.2%}, "
        f"{confidence:.4g} interval {float(low[-1]):.2%} to {float(high[-1]):.2%}"
    )
    told = zip([0, *looks.tolist()], looks.tolist(), failures.tolist(), low.tolist(), high.tolist(), strict=False)
    tips = (
        (x(before), x(run), f"{bad} of {run} failed: {bad / run:.2%}\nbetween {least:.2%} and {most:.2%}")
        for before, run, bad, least, most in told
    )
    marks = [y(min(rate, tallest)) for rate in claimed]
    # neighbours that fall on one spot are drawn once
    spots = dict.fromkeys(round(x(run), 1) for run, bad in enumerate(failed, 1) if bad)
    return svg.drawing(
        RATE_HEIGHT,
        label,
        svg.y_axis(y, "failure rate", lambda rate: f"{100 * rate:g}%"),
        svg.x_axis(x, RATE_BOTTOM, "runs with a verdict"),
        svg.polyline([*upper, *reversed(lower)], "polygon", class_="band mean"),
        svg.join(svg.line(x.start, at, x.end, at, class_="claimed") for at in marks),
        svg.polyline(middle, class_="mean"),
        svg.dot(*middle[-1], 3.5, "mean"),
        svg.join(svg.line(at, RATE_BOTTOM - 9, at, RATE_BOTTOM, class_="failure") for at in spots),
        svg.hits(tips, TOP, RATE_BOTTOM),
    )
