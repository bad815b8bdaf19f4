"""The detection matrix for a person."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from specdebug.harness.fault_matrix import CaseCheck, FaultMatrix
from specdebug.report.tables import plain_table

MAX_DETECTORS = 3
MAX_PROBLEMS = 20


def render_fault_matrix(matrix: FaultMatrix) -> RenderableType:
    """A row for each class, then what is wrong, then what it comes to."""
    rows = [_row(check) for check in matrix.checks]
    problems = [Text(f"  {line}", "red") for line in matrix.problems[:MAX_PROBLEMS]]
    if len(matrix.problems) > MAX_PROBLEMS:
        problems.append(Text(f"  and {len(matrix.problems) - MAX_PROBLEMS} more (see --json)", "dim"))
    alone = [f"{name}: {', '.join(classes)}" for name, classes in matrix.sole.items()]
    return Group(
        plain_table(("fault", "effect", "injected", "caught", "within a step", "worst lag", "caught by"), rows),
        Text("caught by nothing else:", "bold"),
        *(Text(f"  {line}") for line in alone or ["nothing"]),
        Text(f"reached, and caught nothing of this: {', '.join(matrix.idle_probes) or 'none'}", "dim"),
        *problems,
        Text(closing_line(matrix)),
    )


def closing_line(matrix: FaultMatrix) -> str:
    """The matrix in one line."""
    return (
        f"{len(matrix.checks)} rows: {matrix.detected} of {matrix.effective} effective injections caught, "
        f"{matrix.promptly} within a step; {len(matrix.false_alarms)} false alarms in {matrix.clean_steps} clean steps"
    )


def _row(check: CaseCheck) -> tuple[str, ...]:
    data = check.to_dict()
    names = [f"{name} ({count})" for name, count in check.caught_by.most_common(MAX_DETECTORS)]
    more = len(check.caught_by) - MAX_DETECTORS
    benign = check.kind.effect == "benign"
    return (
        check.case.name,
        check.kind.effect,
        f"{sum(run.injected for run in check.runs)} of {len(check.runs)}",
        "-" if benign else str(check.detected),
        "-" if benign else str(check.promptly),
        "-" if data["worst_lag"] is None else str(data["worst_lag"]),
        ", ".join(names) + (f" and {more} more" if more > 0 else ""),
    )
