"""The page of a detection matrix: the detectors of each injected fault, their delay, the faults that none caught."""

from __future__ import annotations

from collections.abc import Sequence

from specdebug.report.detection import DetectionMatrix
from specdebug.report.html.heatmap import heat_map
from specdebug.report.html.page import Chip, Head, render
from specdebug.report.words import NOT_ENGINE_CODE, counted


def faults_page(
    matrix: DetectionMatrix,
    exit_code: int,
    wall_s: float,
    command: str,
    problems: Sequence[str] = (),
    missing: int = 0,
    not_engine_code: Sequence[str] = (),
) -> str:
    """The page. ``command``: the command line.

    Args:
        problems: misses, false alarms and faults that were never injected, a line each.
        missing: runs that were planned and not made.
        not_engine_code: what was not the engine's own code in any run.
    """
    effective = sum(matrix.effective(name) for name in matrix.classes)
    caught = sum(matrix.caught(name) for name in matrix.classes)
    soon = sum(bool(row.caught) and min(row.caught.values()) <= 1 for row in matrix.rows if row.effective)
    missed, others = matrix.missed, len(problems) - len(matrix.missed)
    chips = [Chip("every effective fault was caught", "pass") if effective else Chip("nothing took effect", "unknown")]
    if missed:
        chips = [Chip(f"{len(missed)} missed", "fail")]
    if others > 0:
        chips.append(Chip(counted(others, "other problem"), "fail"))
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
            NOT_ENGINE_CODE: "; ".join(not_engine_code),
        },
        command=command,
    )
    return render(
        "faults.html",
        head,
        plot=heat_map(matrix),
        cells=[(name, matrix.any(name), _names(matrix, name)) for name in matrix.classes],
        sole=matrix.sole,
        missed=missed,
        problems=problems,
    )


def _names(matrix: DetectionMatrix, fault: str) -> str:
    """The detectors that saw a class, each with its count."""
    seen = ((name, matrix.cell(fault, name).caught) for name in matrix.detectors)
    return ", ".join(f"{name} {count}" for name, count in seen if count) or "nothing"
