"""What was found and what was injected, as marks over the steps of a plot; numbers are those of the tables."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from specdebug.harness.outcome import Outcome
from specdebug.report.html.svg import Scale, element, join, line, text

MAX_MARKS = 12
"""Findings, and injections, that are marked; the tables have them all."""

_Told = tuple[int | None, str, str]


def marks(outcome: Outcome, x: Scale, top: float, bottom: float) -> Markup:
    """A dashed line at the step of each of the first findings, a solid one at the first injections; several at one step
    share it."""
    findings = [
        (found.step, str(place), f"{place}. {found.signature} at step {found.step}")
        for place, found in enumerate(outcome.violations[:MAX_MARKS], 1)
    ]
    injections = [
        (each.step, f"i{place}", f"i{place}. {each}") for place, each in enumerate(outcome.injections[:MAX_MARKS], 1)
    ]
    return _lines(injections, "injected", x, top, bottom) + _lines(findings, "finding", x, top, bottom)


def _lines(told: Sequence[_Told], style: str, x: Scale, top: float, bottom: float) -> Markup:
    steps: dict[int, list[tuple[str, str]]] = {}
    for step, label, tip in told:
        if step is not None and x.low <= step <= x.high + 1:  # a step that was never completed is one past the last
            steps.setdefault(step, []).append((label, tip))
    # At one step the names of injections stand below those of findings.
    height = top - 3 if style == "finding" else bottom - 3
    return join(
        element(
            "g",
            line(x(step), top, x(step), bottom, class_=style),
            text(x(step), height, ",".join(label for label, _ in those), class_=style, text_anchor="middle"),
            data_tip="\n".join(tip for _, tip in those),
        )
        for step, those in steps.items()
    )
