"""What was found, as marks over the steps of a plot; numbers are those of the table of findings."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from specdebug.harness.outcome import Violation
from specdebug.report.html.svg import Scale, element, join, line, text

MAX_MARKS = 12
"""Findings that are marked; the table has them all."""


def finding_marks(violations: Sequence[Violation], x: Scale, top: float, bottom: float) -> Markup:
    """A dashed line at the step of each of the first findings; several at one step share it."""
    steps: dict[int, list[tuple[int, Violation]]] = {}
    for place, violation in enumerate(violations[:MAX_MARKS], 1):
        if violation.step is not None:
            steps.setdefault(violation.step, []).append((place, violation))
    return join(
        element(
            "g",
            line(x(step), top, x(step), bottom, class_="finding"),
            text(x(step), top - 3, ",".join(str(place) for place, _ in found), class_="finding", text_anchor="middle"),
            data_tip="\n".join(f"{place}. {violation.signature} at step {step}" for place, violation in found),
        )
        for step, found in steps.items()
    )
