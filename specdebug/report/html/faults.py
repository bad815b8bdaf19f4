"""The page of a detection matrix: what caught which injected fault, how soon, and what nothing caught."""

from __future__ import annotations

from collections.abc import Sequence

from specdebug.report.detection import DetectionMatrix
from specdebug.report.html.arm import MAX_ROWS
from specdebug.report.html.heatmap import heat_map
from specdebug.report.html.page import Chip, Head, render


def faults_page(
    matrix: DetectionMatrix, exit_code: int, wall_s: float, command: str, problems: Sequence[str] = (), missing: int = 0
) -> str:
    """The page.

    Args:
        matrix: what was injected and what caught it.
        exit_code: of the command.
        wall_s: how long it took, in seconds.
        command: the command line that it was.
        problems: everything that is wrong, a line each: what was missed, false alarms, what was never injected.
        missing: runs that were planned and not made.
    """
    effective = sum(matrix.effective(name) for name in matrix.classes)
    caught = sum(matrix.caught(name) for name in matrix.classes)
    soon = sum(bool(row.caught) and min(row.caught.values()) <= 1 for row in matrix.rows if row.effective)
    missed = matrix.missed
    others = len(problems) - len(missed)
    chips = [Chip("every effective fault was caught", "pass") if effective else Chip("nothing took effect", "unknown")]
    if missed:
        chips = [Chip(f"{len(missed)} missed", "fail")]
    if others > 0:
        chips.append(Chip(f"{others} other {'problem' if others == 1 else 'problems'}", "fail"))
    if missing:
        chips.append(Chip(f"{missing} runs not made", "unknown"))
    part = f" ({soon / effective:.2%})" if effective else ""
    head = Head(
        title="Detection matrix",
        chips=chips,
        summary=f"{caught} of {effective} effective injections were caught, {soon}{part} within one step",
        facts={
            "rows": str(len(matrix.classes)),
            "detectors": str(len(matrix.detectors)),
            "injections": str(len(matrix.rows)),
            "without effect": str(len(matrix.rows) - effective),
            "duration": f"{wall_s:.1f} s",
            "exit code": str(exit_code),
        },
        command=command,
    )
    return render(
        "faults.html",
        head,
        plot=heat_map(matrix),
        cells=[(name, matrix.any(name), _names(matrix, name)) for name in matrix.classes],
        sole=matrix.sole,
        missed=missed[:MAX_ROWS],
        more_missed=max(0, len(missed) - MAX_ROWS),
        problems=problems[:MAX_ROWS],
        more_problems=max(0, len(problems) - MAX_ROWS),
    )


def _names(matrix: DetectionMatrix, fault: str) -> str:
    """Return who saw a class, and how often."""
    seen = ((name, matrix.cell(fault, name).caught) for name in matrix.detectors)
    return ", ".join(f"{name} {count}" for name, count in seen if count) or "nothing"
