"""The toggle matrix as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from specdebug.harness.verify import ToggleCheck

MAX_PROBLEMS = 5
"""Problems of one toggle that are spelt out."""


def render_matrix(checks: Sequence[ToggleCheck]) -> RenderableType:
    """One row a toggle, the problems of the rotten ones, one closing line."""
    table = Table()
    for name in ("PR", "scenario", "stated signature"):
        table.add_column(name, overflow="fold")
    for name in ("applied: silent", "reverted: detected"):
        table.add_column(name, justify="right")
    table.add_column("")
    for check in checks:
        table.add_row(
            str(check.toggle.pr),
            escape(check.toggle.detected_by.scenario),
            escape("\n".join(check.toggle.detected_by.signatures)),
            f"{check.silent} of {len(check.applied)}",
            f"{check.detected} of {len(check.reverted)}",
            Text("live", "green") if check.live else Text("rotten", "bold red"),
        )
    lines: list[RenderableType] = []
    for check in checks:
        for problem in check.problems[:MAX_PROBLEMS]:
            lines.append(Text(f"{check.toggle.pr} {problem}", "red"))
        if len(check.problems) > MAX_PROBLEMS:
            lines.append(Text(f"{check.toggle.pr} and {len(check.problems) - MAX_PROBLEMS} more", "red"))
    live = sum(check.live for check in checks)
    return Group(table, *lines, Text(f"{live} of {len(checks)} toggles live"))
