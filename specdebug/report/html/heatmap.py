"""The detection matrix: of every class of faults, how often each detector saw it, and how soon."""

from __future__ import annotations

from markupsafe import Markup

from specdebug.report.detection import Cell, DetectionMatrix
from specdebug.report.html.svg import drawing, element, join, rect, text

CELL, TALL, NAMES, HEADS = 46.0, 24.0, 250.0, 170.0


def heat_map(matrix: DetectionMatrix) -> Markup | None:
    """The plot: a row a class, a column a detector, all detectors together first; None where nothing was caught.

    Cells of classes that a detector never saw are left out: few of thousands have anything in them.
    """
    if not matrix.classes or not matrix.detectors:
        return None
    width = max(960.0, NAMES + CELL * (len(matrix.detectors) + 1) + 20)
    bottom = HEADS + TALL * len(matrix.classes)
    caught = sum(matrix.caught(name) for name in matrix.classes)
    label = (
        f"Detection matrix: {len(matrix.classes)} classes of faults, {len(matrix.detectors)} detectors; "
        f"{caught} of {sum(matrix.effective(name) for name in matrix.classes)} effective injections were caught"
    )
    heads = [_head(NAMES + CELL * (place + 0.5), name) for place, name in enumerate(("any", *matrix.detectors))]
    rows = [_row(matrix, name, HEADS + TALL * place) for place, name in enumerate(matrix.classes)]
    return drawing(bottom + 12, label, *heads, *rows, width=width)


def _head(x: float, name: str) -> Markup:
    shown = name if len(name) <= 26 else name[:25] + "…"
    turn = f"rotate(-60 {x:.0f} {HEADS - 8:.0f})"
    return element("text", shown, x=x, y=HEADS - 8, transform=turn, class_="name", data_tip=name)


def _row(matrix: DetectionMatrix, name: str, top: float) -> Markup:
    band = rect(NAMES + 1, top + 1, CELL * (len(matrix.detectors) + 1) - 2, TALL - 2, class_="cell none")
    cells = [_cell(matrix.any(name), NAMES, top, f"{name} by any")]
    for place, detector in enumerate(matrix.detectors, start=1):
        cell = matrix.cell(name, detector)
        if cell.caught:
            cells.append(_cell(cell, NAMES + CELL * place, top, f"{name} by {detector}"))
    return join((text(NAMES - 10, top + 16, name, text_anchor="end", class_="name"), band, *cells))


def _cell(cell: Cell, x: float, top: float, name: str) -> Markup:
    """A cell whose strength is the share that was caught; a class without an effective injection has a dash."""
    share = cell.caught / max(cell.effective, 1)
    if not cell.effective:
        words, tip, style = "–", f"{name}: no effective injection", "cell none"
    else:
        tip = f"{name}: {cell.caught} of {cell.effective}"
        if cell.steps is not None:
            tip += f"\nafter {cell.steps:.2g} steps in the mean, {cell.latest} at most"
        words, style = (f"{100 * share:.0f}" if cell.caught else ""), "cell strong" if share > 0.55 else "cell"
    return element(
        "g",
        rect(x + 1, top + 1, CELL - 2, TALL - 2, class_=style, style=f"--heat-of:{share:.2f}"),
        text(x + CELL / 2, top + 16, words, text_anchor="middle", class_=style),
        data_tip=tip,
    )
