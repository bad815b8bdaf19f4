"""The toggle matrix as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from specdebug.campaign.loops.latent import LatentCheck
from specdebug.campaign.loops.verify import ToggleCheck
from specdebug.report.tables import Listing, columns, line
from specdebug.report.words import replaced
from specdebug.verdict.outcome import not_engine_code

COLUMNS = (
    *columns("PR", "state", "scenario", key=True),
    *columns("plan", "stated signature"),
    *columns("applied: silent", "reverted: detected", right=True),
)
MAX_PROBLEMS = 5
"""Problems of one toggle that are spelt out."""


def render_matrix(checks: Sequence[ToggleCheck], latent: Sequence[LatentCheck] = ()) -> RenderableType:
    """One row a toggle and scenario that shows it, problems of rotten ones, latent ones with their guards, one line.

    A plan in parentheses is the scenario's own where another was asked for: the fix lies in that plan.
    """
    rows = [
        (
            str(check.toggle.pr),
            _state(check),
            check.toggle.detected_by.scenario,
            f"({check.backend})" if check.keeps_backend else check.backend,
            check.toggle.detected_by.signatures,
            f"{check.silent} of {len(check.applied)}",
            f"{check.detected} of {len(check.reverted)}",
        )
        for check in checks
    ]
    lines: list[RenderableType] = []
    for check in checks:
        lines += [line(f"{check.toggle.pr} {problem}", "red") for problem in check.problems[:MAX_PROBLEMS]]
        if len(check.problems) > MAX_PROBLEMS:
            lines.append(line(f"{check.toggle.pr} and {len(check.problems) - MAX_PROBLEMS} more", "red"))
    for one in latent:
        told = f"latent: {one.guard} guards it; {one.why}" if one.guard else one.problem
        lines.append(line(f"{one.toggle.pr} {told}", "" if one.guard else "red"))
    numbers = {check.toggle.pr for check in checks}
    lacking = {check.toggle.pr for check in checks if not check.live}
    untested = lacking - {check.toggle.pr for check in checks if not check.live and not check.untested}
    said = f"{len(numbers - lacking)} of {len(numbers)} toggles live"
    said += f", {len(untested)} untested" if untested else ""
    said += f", {len(latent)} latent" if latent else ""
    where = sorted({place for check in checks if (place := _place(check))})
    parts = not_engine_code(outcome for check in checks for outcome in check.outcomes)
    lines += [line(each, "dim") for each in replaced(parts)]
    return Group(Listing(COLUMNS, rows, bar=True), *lines, line(" ".join([said, *where])))


def _state(check: ToggleCheck) -> Text:
    if check.live:
        return Text("live", "green")
    return Text("untested", "yellow") if check.untested else Text("rotten", "bold red")


def _place(check: ToggleCheck) -> str:
    """Device and dtype, unless they are the plainest."""
    stack = next((r.outcome.stack for r in (*check.applied, *check.reverted) if r.outcome.stack), None)
    if stack is None or (stack["device"] == "cpu" and stack["dtype"] == "float32"):
        return ""
    if stack["executor"] == "server":
        return f"on a server ({stack['name']}), {stack['dtype']}"
    return f"on {stack['device']} ({stack['name']}), {stack['dtype']}"
