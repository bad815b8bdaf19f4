"""The detection matrix: of every class of faults, how often each detector saw it, and how soon."""

from collections.abc import Sequence

from markupsafe import Markup

from specdebug.campaign.loops.fault_matrix import CaseCheck, FaultMatrix
from specdebug.report.html.svg import drawing, element, join, rect, text

CELL, TALL, HEADS = 46.0, 24.0, 170.0
CHARACTER = 7.2
"""Of a name, at most in the mean."""


def heat_map(matrix: FaultMatrix) -> Markup | None:
    """The plot: a row a class, a column a detector, all detectors together first; None where nothing was caught.

    Cells of classes that a detector never saw are left out: few of thousands have anything in them.
    """
    rows, counts = [check for check in matrix.checks if check.runs], matrix.caught_by
    if not counts:
        return None
    detectors = sorted(counts, key=lambda name: (-counts[name], name))
    wide, left = len(detectors) + 1, 20 + CHARACTER * max(len(check.case.name) for check in rows)
    label = (
        f"Detection matrix: {len(rows)} classes of faults, {len(detectors)} detectors; "
        f"{matrix.detected} of {matrix.effective} effective injections were caught"
    )
    drawn = []
    for place, name in enumerate(("any", *detectors)):
        x, shown = left + CELL * (place + 0.5), name if len(name) <= 26 else name[:25] + "…"
        turn = f"rotate(-60 {x:.0f} {HEADS - 8:.0f})"
        drawn.append(element("text", shown, x=x, y=HEADS - 8, transform=turn, class_="name", data_tip=name))
    for place, check in enumerate(rows):
        name, top = check.case.name, HEADS + TALL * place
        band = rect(left + 1, top + 1, CELL * wide - 2, TALL - 2, class_="cell none")
        drawn += [text(left - 10, top + 16, name, text_anchor="end", class_="name"), band]
        drawn.append(_cell(check, check.steps_to(), left, top, f"{name} by any"))
        for at, detector in enumerate(detectors, start=1):
            if steps := check.steps_to(detector):
                drawn.append(_cell(check, steps, left + CELL * at, top, f"{name} by {detector}"))
    height = HEADS + TALL * len(rows) + 12
    return drawing(height, label, join(drawn), width=max(960.0, left + CELL * wide + 20))


def _cell(check: CaseCheck, steps: Sequence[int], x: float, top: float, name: str) -> Markup:
    """A cell whose strength is the share that was caught, after so many steps each; a class without an effective
    injection has a dash."""
    caught, effective = len(steps), len(check.effective)
    share = caught / max(effective, 1)
    words, tip, style = "–", f"{name}: no effective injection", "cell none"
    if effective:
        words, tip = (f"{100 * share:.0f}" if caught else ""), f"{name}: {caught} of {effective}"
        style = "cell strong" if share > 0.55 else "cell"
        if steps:
            tip += f"\nafter {sum(steps) / caught:.2g} steps in the mean, {max(steps)} at most"
    return element(
        "g",
        rect(x + 1, top + 1, CELL - 2, TALL - 2, class_=style, style=f"--heat-of:{share:.2f}"),
        text(x + CELL / 2, top + 16, words, text_anchor="middle", class_=style),
        data_tip=tip,
    )
