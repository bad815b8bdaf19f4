"""The detection matrix: of every class of faults, how often each detector saw it, and how soon."""

from markupsafe import Markup

from specdebug.report.faults import Cell, DetectionMatrix
from specdebug.report.html.svg import drawing, element, join, rect, text

CELL, TALL, HEADS = 46.0, 24.0, 170.0
CHARACTER = 7.2
"""Of a name, at most in the mean."""


def heat_map(matrix: DetectionMatrix) -> Markup | None:
    """The plot: a row a class, a column a detector, all detectors together first; None where nothing was caught.

    Cells of classes that a detector never saw are left out: few of thousands have anything in them.
    """
    if not matrix.classes or not matrix.detectors:
        return None
    wide, cells = len(matrix.detectors) + 1, [matrix.cell(name) for name in matrix.classes]
    caught, left = sum(cell.caught for cell in cells), 20 + CHARACTER * max(map(len, matrix.classes))
    label = (
        f"Detection matrix: {len(matrix.classes)} classes of faults, {len(matrix.detectors)} detectors; "
        f"{caught} of {sum(cell.effective for cell in cells)} effective injections were caught"
    )
    drawn = []
    for place, name in enumerate(("any", *matrix.detectors)):
        x, shown = left + CELL * (place + 0.5), name if len(name) <= 26 else name[:25] + "…"
        turn = f"rotate(-60 {x:.0f} {HEADS - 8:.0f})"
        drawn.append(element("text", shown, x=x, y=HEADS - 8, transform=turn, class_="name", data_tip=name))
    for place, (name, cell) in enumerate(zip(matrix.classes, cells, strict=True)):
        top = HEADS + TALL * place
        band = rect(left + 1, top + 1, CELL * wide - 2, TALL - 2, class_="cell none")
        drawn += [text(left - 10, top + 16, name, text_anchor="end", class_="name"), band]
        drawn.append(_cell(cell, left, top, f"{name} by any"))
        for at, detector in enumerate(matrix.detectors, start=1):
            if (own := matrix.cell(name, detector)).caught:
                drawn.append(_cell(own, left + CELL * at, top, f"{name} by {detector}"))
    height = HEADS + TALL * len(matrix.classes) + 12
    return drawing(height, label, join(drawn), width=max(960.0, left + CELL * wide + 20))


def _cell(cell: Cell, x: float, top: float, name: str) -> Markup:
    """A cell whose strength is the share that was caught; a class without an effective injection has a dash."""
    share = cell.caught / max(cell.effective, 1)
    words, tip, style = "–", f"{name}: no effective injection", "cell none"
    if cell.effective:
        words, tip = (f"{100 * share:.0f}" if cell.caught else ""), f"{name}: {cell.caught} of {cell.effective}"
        style = "cell strong" if share > 0.55 else "cell"
        if cell.steps is not None:
            tip += f"\nafter {cell.steps:.2g} steps in the mean, {cell.latest} at most"
    return element(
        "g",
        rect(x + 1, top + 1, CELL - 2, TALL - 2, class_=style, style=f"--heat-of:{share:.2f}"),
        text(x + CELL / 2, top + 16, words, text_anchor="middle", class_=style),
        data_tip=tip,
    )
