"""Marks over the steps of a plot for findings and injected faults; their numbers are those of the tables."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from specdebug.report.html.svg import Scale, element, line, text
from specdebug.verdict.outcome import Outcome

MAX_MARKS = 12
"""Findings, and injections, that are marked; the tables have them all."""

CLOSE = 24
"""Units between two labels at least; a label that is nearer is left to the tables and the tips."""

_Told = tuple[int | None, int, str]


def marks(outcome: Outcome, x: Scale, top: float, bottom: float) -> Markup:
    """Dashed lines at the steps of the first findings, solid ones at those of the first injections."""
    findings = [
        (found.step, place, f"{place}. {found.signature} at step {found.step}")
        for place, found in enumerate(outcome.violations[:MAX_MARKS], 1)
    ]
    injected = [(each.step, place, f"i{place}. {each}") for place, each in enumerate(outcome.injections[:MAX_MARKS], 1)]
    return _lines(injected, "injected", "i", x, top, bottom) + _lines(findings, "finding", "", x, top, bottom)


def _lines(told: Sequence[_Told], style: str, letter: str, x: Scale, top: float, bottom: float) -> Markup:
    steps: dict[int, list[tuple[int, str]]] = {}
    for step, place, tip in told:
        if step is not None and x.low <= step <= x.high + 1:  # a step that was never completed is one past the last
            steps.setdefault(step, []).append((place, tip))
    # At one step the names of injections stand below those of findings.
    height = top - 3 if style == "finding" else bottom - 3
    parts, labelled = [], float("-inf")
    for step, those in sorted(steps.items()):
        at, label = x(step), letter + _range([place for place, _ in those])
        parts.append(line(at, top, at, bottom, class_=style, data_tip="\n".join(tip for _, tip in those)))
        if at - labelled >= CLOSE:
            parts.append(text(at, height, label, class_=style, text_anchor="middle"))
            labelled = at
    return element("g", *parts, class_="marks")


def _range(places: Sequence[int]) -> str:
    """``3``, or ``3-7`` of several in a row; others are listed."""
    first, last = places[0], places[-1]
    if len(places) > 2 and last - first == len(places) - 1:
        return f"{first}-{last}"
    return ",".join(map(str, places))
